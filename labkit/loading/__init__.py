"""Batches from a cursor on, the same bits with any number of workers. Lessons 02 and 04.

`fetching` makes one batch; `workers` has other processes make them; `feed` gives all microbatches of each update.
"""

from labkit.loading.feed import Feed, Fetched
from labkit.loading.fetching import draws_from_global, fetch, hidden_generators
from labkit.loading.workers import WorkerError

__all__ = ["Feed", "Fetched", "WorkerError", "draws_from_global", "fetch", "hidden_generators"]
