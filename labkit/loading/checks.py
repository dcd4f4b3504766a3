"""Refused before a worker is started: what would fail late in one, or differ there. Lessons 02 and 15."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import sys
import types
from typing import Any

import numpy as np
import torch

from labkit.errors import ConfigError, DataError
from labkit.loading.fetching import Source, hidden_generators


def check_crew(source: Source, workers: int, method: str, prefetch: int) -> None:
    """Refuse early what would fail late in a worker, or differ there.

    Raises ConfigError for numbers and start methods that cannot be used here, DataError for a data set that holds a
    generator, is defined in a notebook cell (unless forked), or cannot be sent to another process.
    """
    if workers < 0 or prefetch < 1:
        raise ConfigError(f"workers={workers}, prefetch={prefetch}", "workers of 0 or more, prefetch of 1 or more")
    if workers == 0:
        return
    if method not in multiprocessing.get_all_start_methods():
        known = " or ".join(multiprocessing.get_all_start_methods())
        raise ConfigError(f"start_method={method!r}", f"{known} on this system", "choose one of them")
    if multiprocessing.current_process().daemon:
        raise ConfigError(f"workers={workers} inside a worker process", "workers=0", "a daemon may not have children")
    hidden = hidden_generators(source.dataset) + hidden_generators(source.transform, "transform")
    if hidden:
        raise DataError(
            f"a random generator is kept in {', '.join(hidden)}, and each worker would draw from a copy of it",
            "a data set that gives the same example for the same index",
            "draw in transform(example, rng), whose rng is keyed by (seed, epoch, example)",
        )
    if method != "fork":
        _check_sendable(source, method)


class _Inspector(pickle.Pickler):
    """Pickles into nothing, to see what would fail; bulk and what multiprocessing itself sends is passed over."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), protocol=pickle.HIGHEST_PROTOCOL)
        self.from_main: list[str] = []

    def reducer_override(self, thing: Any) -> Any:
        bulk = isinstance(thing, torch.Tensor) or isinstance(thing, np.ndarray) and not thing.dtype.hasobject
        if bulk or type(thing).__module__.startswith("multiprocessing."):
            return int, ()
        if isinstance(thing, (type, types.FunctionType)) and thing.__module__ == "__main__":
            self.from_main.append(thing.__qualname__)
        return NotImplemented


def _check_sendable(source: Source, method: str) -> None:
    main = sys.modules["__main__"]
    importable = getattr(getattr(main, "__spec__", None), "name", None) or getattr(main, "__file__", None)
    inspector, failure = _Inspector(), None
    try:
        inspector.dump(source)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        failure = error
    fork = ", or start_method=fork" if "fork" in multiprocessing.get_all_start_methods() else ""
    if inspector.from_main and not importable:
        raise DataError(
            f"{inspector.from_main[0]} is defined in a notebook cell, where workers of {method!r} cannot find it",
            "data sets, transforms and collate functions that live in a .py file",
            f"move {inspector.from_main[0]} to a .py file beside the notebook and import it, or set workers=0{fork}",
        )
    if failure is not None:
        raise DataError(
            f"the data set, transform or collate cannot be sent to workers started by {method!r}: {failure}",
            "objects that can be pickled: no lambdas, local classes or open files",
            f"define them at the top of a .py file, open files in __getitem__, or set workers=0{fork}",
        ) from failure
