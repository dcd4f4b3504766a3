"""One batch from a data set: a pure function of (seed, epoch, indices), wherever it runs. Lesson 02."""

from __future__ import annotations

import itertools
import random
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from labkit import randomness
from labkit.errors import DataError

Transform = Callable[[Any, np.random.Generator], Any]
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)


@dataclass(frozen=True)
class Source:
    """What batches are made from; it travels to every worker once.

    The data set must give the same example for the same index. transform(example, rng) gets a generator keyed by
    (seed, epoch, index). shield_global seeds the global streams around each example in the same way and puts them
    back after the batch: for transforms that cannot be changed; slow.
    """

    dataset: Any
    collate: Callable[[Any], Any]
    transform: Transform | None = None
    seed: int = 0
    shield_global: bool = False

    def batch(self, epoch: int, indices: Sequence[int]) -> Any:
        """The collated batch of these examples, made by one torch thread: a sum of two threads has other last bits.

        Raises DataError when the data set does not hold what its length promised; its own errors come through.
        """
        threads = torch.get_num_threads()
        if threads != 1:
            torch.set_num_threads(1)
        try:
            if self.shield_global:
                with _globals_kept():
                    return self._shielded(epoch, indices)
            return self.collate(self._examples(epoch, indices))
        finally:
            if threads != 1:
                torch.set_num_threads(threads)

    def _examples(self, epoch: int, indices: Sequence[int]) -> Any:
        together = getattr(self.dataset, "__getitems__", None)
        if self.transform is not None or not callable(together):
            return [self._example(epoch, index) for index in indices]
        try:
            examples = together(indices)
        except IndexError as error:
            raise self._missing(indices) from error
        if isinstance(examples, list) and len(examples) != len(indices):
            raise DataError(
                f"__getitems__ of the data set returned {len(examples)} examples for {len(indices)} indices",
                "one example for each index",
                f"correct {type(self.dataset).__name__}.__getitems__",
            )
        return examples

    def _example(self, epoch: int, index: int) -> Any:
        try:
            example = self.dataset[index]
        except IndexError as error:
            raise self._missing([index]) from error
        if self.transform is None:
            return example
        return self.transform(example, randomness.numpy_generator("transform", self.seed, epoch, index))

    def _shielded(self, epoch: int, indices: Sequence[int]) -> Any:
        examples = []
        for index in indices:
            randomness.seed_cpu("shield", self.seed, epoch, index)
            examples.append(self._example(epoch, index))
        randomness.seed_cpu("shield collate", self.seed, epoch, indices[0])
        return self.collate(examples)

    def _missing(self, indices: Sequence[int]) -> DataError:
        return DataError(
            f"the data set has no example {indices[0] if len(indices) == 1 else f'for one of {list(indices)}'}",
            f"examples for every index below its length, now {len(self.dataset)}",
            "a data set must neither shrink while it is used nor promise more than it holds",
        )


def fetch(dataset: Any, collate: Callable[[Any], Any], indices: np.ndarray | Sequence[int]) -> Any:
    """The collated batch of these examples, as they are: for evaluation. Raises DataError, see Source.batch."""
    return Source(dataset, collate).batch(0, np.asarray(indices).tolist())


def draws_from_global(
    dataset: Any, transform: Transform | None, collate: Callable[[Any], Any], index: int
) -> list[str]:
    """Which global streams ("python", "numpy", "torch") move while one example is made; they are put back.

    A stream that moves would move by another amount in a worker, or not at all in this process.
    """
    with randomness.preserved():
        before = randomness.capture()
        Source(dataset, collate, transform).batch(0, [index])
        return randomness.differences(before, randomness.capture())


def hidden_generators(thing: Any, name: str = "dataset") -> list[str]:
    """Where in the attributes of an object random generators are kept, such as "dataset.noise.rng".

    A worker would get a copy of such a generator: all workers draw the same numbers, and in every epoch again. Looks
    into attributes, lists, tuples and dictionaries, four levels deep, and into the first 64 entries of each.
    """
    return list(_hidden(thing, name, 4, set()))


def _hidden(thing: Any, name: str, depth: int, seen: set[int]) -> Iterator[str]:
    if isinstance(thing, GENERATORS):
        yield name
        return
    if depth == 0 or id(thing) in seen or isinstance(thing, (torch.Tensor, np.ndarray, type, types.ModuleType)):
        return
    seen.add(id(thing))
    parts: Iterable[tuple[str, Any]] = ()
    if isinstance(thing, dict):
        parts = ((f"{name}[{key!r}]", value) for key, value in thing.items())
    elif isinstance(thing, (list, tuple)):
        parts = ((f"{name}[{place}]", value) for place, value in enumerate(thing))
    elif hasattr(thing, "__dict__"):
        parts = ((f"{name}.{key}", value) for key, value in vars(thing).items())
    for part, value in itertools.islice(parts, 64):
        yield from _hidden(value, part, depth - 1, seen)


@contextmanager
def _globals_kept() -> Iterator[None]:
    """randomness.preserved() for the CPU without its checks: this runs once for each microbatch."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
