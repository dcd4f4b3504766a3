"""All microbatches of each update, from a cursor on. Who fetches them is no part of the result. Lesson 04."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.errors import ConfigError, DataError, StateError
from labkit.loading.checks import check_crew
from labkit.loading.fetching import Source, Transform
from labkit.loading.workers import Crew, Request
from labkit.order import Cursor, EpochOrder, cut


@dataclass(frozen=True)
class Fetched:
    """One update's worth of data. The cursor belongs to whoever finishes the update: it is only proposed here."""

    epoch: int
    start: int  # position in the epoch of the first example
    indices: np.ndarray  # int64 of shape (examples of this update,)
    microbatches: list[Any]
    cursor_after: Cursor


@dataclass(frozen=True)
class _Plan:
    """What one update consists of."""

    epoch: int
    start: int
    indices: np.ndarray
    pieces: list[slice]
    after: Cursor

    def requests(self) -> list[Request]:
        return [(self.epoch, self.indices[piece].tolist()) for piece in self.pieces]


@dataclass(frozen=True)
class _Planner:
    order: EpochOrder
    batch_size: int
    sizes: tuple[int, ...]

    def plan(self, cursor: Cursor) -> _Plan:
        length = self.order.length
        stop = min(cursor.examples + self.batch_size, length)
        indices = self.order.indices(cursor.epoch, cursor.examples, stop)
        after = cursor.advanced(len(indices), length)
        return _Plan(cursor.epoch, cursor.examples, indices, cut(len(indices), self.sizes), after)

    def requests(self, cursor: Cursor, whole_run: bool, ahead: deque[_Plan]) -> Iterator[Request]:
        """What workers are asked for, drawn as their loader reaches ahead; each update joins `ahead` on the way."""
        while True:
            plan = self.plan(cursor)
            ahead.append(plan)
            yield from plan.requests()
            if plan.after.epoch != plan.epoch and not whole_run:
                return
            cursor = plan.after


class Feed:
    """Gives the updates one by one, from the cursor that `at` set; an update never mixes two epochs.

    workers=0 fetches in this process. Otherwise one torch DataLoader fetches `prefetch` microbatches ahead for each
    worker; with persistent_workers its processes stay for the whole run, else for one epoch. They start with the first
    `next`. Nothing is drawn from a global stream. Raises ConfigError or DataError for what cannot work (check_crew).
    """

    def __init__(
        self, dataset: Any, collate: Callable[[Any], Any], transform: Transform | None, order: EpochOrder, *,
        batch_size: int, microbatch_size: tuple[int, ...] = (), seed: int = 0, workers: int = 0,
        start_method: str = "spawn", persistent_workers: bool = True, prefetch: int = 2, shield_global: bool = False,
    ) -> None:  # fmt: skip
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size}", "at least 1")
        cut(batch_size, microbatch_size)
        self._source = Source(dataset, collate, transform, seed, shield_global)
        check_crew(self._source, workers, start_method, prefetch)
        self._planner = _Planner(order, batch_size, microbatch_size)
        self._workers, self._method, self._prefetch = workers, start_method, prefetch
        self._persistent = persistent_workers
        self._cursor: Cursor | None = None
        self._crew: Crew | None = None
        self._ahead: deque[_Plan] = deque()  # updates whose microbatches the workers were asked for
        self._check_length()

    def at(self, cursor: Cursor) -> None:
        """Set the position of the next update. Raises StateError for a cursor outside the epoch."""
        self.check(cursor)
        if cursor != self._cursor:
            self.close()
        self._cursor = cursor

    def check(self, cursor: Cursor) -> None:
        """Raise what at() would raise; changes nothing."""
        if cursor.epoch < 0 or not 0 <= cursor.examples < self._planner.order.length:
            raise StateError(
                f"a cursor at epoch {cursor.epoch}, example {cursor.examples}",
                f"an epoch of at least 0 and an example below {self._planner.order.length}, the length of the data set",
                "resume with the data set of the saved run",
            )

    def next(self) -> Fetched:
        """The next update's data. After an error, or an interrupt, the position is as before and may be tried again.

        Raises DataError for a data set that shrinks or breaks its word, WorkerError for a worker that died.
        """
        if self._cursor is None:
            raise StateError("this feed has no position yet", "a cursor", "call at(cursor) first")
        self._check_length()
        try:
            plan, batches = self._fetch(self._cursor) if self._workers else self._fetch_here(self._cursor)
        except BaseException:
            self.close()
            raise
        self._cursor = plan.after
        return Fetched(plan.epoch, plan.start, plan.indices, batches, plan.after)

    def close(self) -> None:
        """End the workers; the position stays, and `next` would start new ones."""
        crew, self._crew = self._crew, None
        if crew is not None:
            self._farewell.detach()
            crew.stop()

    def _fetch_here(self, cursor: Cursor) -> tuple[_Plan, list[Any]]:
        plan = self._planner.plan(cursor)
        return plan, [self._source.batch(epoch, indices) for epoch, indices in plan.requests()]

    def _fetch(self, cursor: Cursor) -> tuple[_Plan, list[Any]]:
        crew = self._crew
        if crew is None or not self._ahead:  # no workers yet, or their epoch is over
            crew = self._start(cursor)
        batches = [crew.take() for _ in self._ahead[0].pieces]
        return self._ahead.popleft(), batches

    def _start(self, cursor: Cursor) -> Crew:
        self.close()
        self._ahead = deque()
        requests = self._planner.requests(cursor, self._persistent, self._ahead)
        self._crew = Crew(self._source, requests, self._workers, self._method, self._prefetch)
        self._farewell = weakref.finalize(self, self._crew.stop)  # a feed that is dropped takes its workers along
        self._farewell.atexit = False  # too late: the crew sees to that itself
        return self._crew

    def _check_length(self) -> None:
        if len(self._source.dataset) != self._planner.order.length:
            raise DataError(
                f"the data set holds {len(self._source.dataset)} examples",
                f"{self._planner.order.length}, as it had when the run was built",
                "give a data set that does not change while it is used",
            )
