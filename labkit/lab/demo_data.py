"""Data sets and one small training script whose randomness can be watched. Lesson 02.

They live in a module and not in a cell: a worker process that is started afresh imports them by their name.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from labkit import order, randomness
from labkit.recipes import digits
from labkit.state import leaf_bytes

# ------------------------------------------------------------------------------------------- data sets for workers


class Noises(Dataset[dict[str, Any]]):
    """For each index: the worker that made it (-1: none) and one number from each of four streams.

    kept: a generator that lives in this data set; numpy, torch: the global streams of the process that makes the
    example; keyed: a generator of its own for (seed, epoch, index). `epoch` is set by whoever begins one.
    """

    def __init__(self, length: int = 8, seed: int = 0) -> None:
        self.length, self.seed, self.epoch = length, seed, 0
        self.rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        worker = get_worker_info()
        return {
            "index": index,
            "worker": -1 if worker is None else worker.id,
            "kept": self.rng.random(),
            "numpy": np.random.random(),
            "torch": torch.rand(()).item(),
            "keyed": randomness.numpy_generator("noise", self.seed, self.epoch, index).random(),
        }


def seed_worker(worker: int) -> None:
    """A worker initialiser: Python and numpy from the seed that torch gave this worker. At the top of a module, so
    that it can be sent to a worker; a lambda or a function inside a function cannot."""
    seed = torch.initial_seed() % 2**32
    random.seed(seed)
    np.random.seed(seed)


# --------------------------------------------------------------------------------- a script and those who drink with it

SCRIPTS = ("one stream for all", "a generator in the data set", "a key for each use")
"""Where order, initial weights and augmentation come from. Dropout always draws from torch's global generator."""

SOURCES = (
    "torch's global generator",
    "numpy's global generator",
    "Python's generator",
    "a private generator",
    "the data set's own generator",
)
ROWS = ("initial weights", "order", "dropout masks", "augmentation", "trained weights")
EPOCH, BATCH, HIDDEN, LAST = 20, 16, 32, 30  # updates in an epoch, examples in an update, units, updates followed

FROM_WORKERS: Mapping[tuple[str, str, int], int] = {
    (SCRIPTS[0], SOURCES[0], 0): 1,
    (SCRIPTS[0], SOURCES[0], 10): 21,
    (SCRIPTS[1], SOURCES[4], 0): 1,
    (SCRIPTS[1], SOURCES[4], 10): 21,
}
"""(script, source, drawn after update) -> first update whose augmentation differs when two workers make it.

Recorded; a test measures it again with real workers. Pairs that are not named: never. Workers get their seeds and
their copy of the data set when an epoch begins, and hear nothing of what is drawn in the main process afterwards.
"""


class Images(Dataset[Tensor]):
    """A few digits with noise from numpy's global stream, from a generator kept here, or keyed by (epoch, index)."""

    def __init__(self, script: str) -> None:
        self.script, self.epoch = script, 0
        self.images = digits.load("train").images[: EPOCH * BATCH].flatten(1)
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return len(self.images)

    def noise(self, index: int) -> float:
        """How much brighter or darker this image becomes."""
        if self.script == SCRIPTS[2]:
            return float(randomness.numpy_generator("brightness", self.epoch, index).normal())
        return float(np.random.normal() if self.script == SCRIPTS[0] else self.rng.normal())

    def __getitem__(self, index: int) -> Tensor:
        return self.images[index] * (1 + 0.1 * self.noise(index))


class Script:
    """A two-layer network with dropout on 320 digits, written with the streams that `script` names."""

    def __init__(self, script: str, source: str, draws: int, after: int) -> None:
        randomness.seed_all("who drinks")
        self.script, self.source, self.draws, self.after = script, source, draws, after
        self.data, self.private = Images(script), torch.Generator().manual_seed(0)
        self.labels = digits.load("train").labels
        self.drink(0)
        keyed = randomness.torch_generator("weights") if script == SCRIPTS[2] else None
        sizes = ((HIDDEN, digits.SIDE**2), (digits.CLASSES, HIDDEN))
        self.weights = [(0.1 * torch.randn(size, generator=keyed)).requires_grad_() for size in sizes]
        self.seen: dict[str, list[str]] = {row: [] for row in ROWS}

    def drink(self, update: int) -> None:
        """The extra draws, if this is the update after which they happen."""
        for _ in range(self.draws if update == self.after else 0):
            index = SOURCES.index(self.source)
            (torch.rand, np.random.random, random.random, self._from_private, self.data.rng.random)[index](
                *([1] if index == 0 else [])
            )

    def _from_private(self) -> None:
        torch.rand(1, generator=self.private)

    def order(self, epoch: int) -> Tensor:
        """The indices of an epoch, (320,)."""
        if self.script == SCRIPTS[2]:
            return torch.from_numpy(order.EpochOrder("randperm", 0, len(self.data)).indices(epoch, 0, len(self.data)))
        return torch.randperm(len(self.data))

    def update(self, rows: Tensor) -> None:
        """One update of plain gradient descent; what was used is noted."""
        self.note("initial weights", self.seen["initial weights"] or self.weights[0])
        brightness = torch.tensor([self.data.noise(int(i)) for i in rows]).unsqueeze(1)
        mask = nn.functional.dropout(torch.ones(len(rows), HIDDEN), 0.2)
        inputs = self.data.images[rows] * (1 + 0.1 * brightness)
        scores = ((inputs @ self.weights[0].T).relu() * mask) @ self.weights[1].T
        gradients = torch.autograd.grad(nn.functional.cross_entropy(scores, self.labels[rows]), self.weights)
        with torch.no_grad():
            for weight, gradient in zip(self.weights, gradients, strict=True):
                weight -= 0.5 * gradient
        for row, value in zip(ROWS[1:], (rows, mask, brightness, self.weights[0]), strict=True):
            self.note(row, value)

    def note(self, row: str, value: Any) -> None:
        bits = value[0] if isinstance(value, list) else hashlib.blake2b(leaf_bytes(value), digest_size=8).hexdigest()
        self.seen[row].append(bits)


def follow(script: str, source: str, draws: int, after: int, updates: int = LAST) -> dict[str, list[str]]:
    """What a run of the script used: for each of ROWS one digest an update, after `draws` extra numbers were drawn
    from `source` after update `after` (0: before the model is built). The caller's streams are left as they were."""
    return {row: list(bits) for row, bits in zip(ROWS, _followed(script, source, draws, after, updates), strict=True)}


@lru_cache(maxsize=256)  # a slider asks for the undisturbed run again and again
def _followed(script: str, source: str, draws: int, after: int, updates: int) -> tuple[tuple[str, ...], ...]:
    with randomness.preserved():
        run = Script(script, source, draws, after)
        for update in range(1, updates + 1):
            if update % EPOCH == 1:
                run.data.epoch = update // EPOCH
                rows = run.order(run.data.epoch)
            place = (update - 1) % EPOCH * BATCH
            run.update(rows[place : place + BATCH])
            run.drink(update)
    return tuple(tuple(run.seen[row]) for row in ROWS)


def equal_rows(script: str, source: str, draws: int, after: int, workers: int = 0) -> np.ndarray:
    """Which of ROWS (first axis) are equal to an undisturbed run at which update (second axis): bool, (5, 30).

    workers=2: the augmentation is that of two worker processes, from FROM_WORKERS.
    """
    plain, drunk = follow(script, SOURCES[0], 0, 0), follow(script, source, draws, after if draws else 0)
    equal = np.array([[a == b for a, b in zip(plain[row], drunk[row], strict=True)] for row in ROWS])
    if workers and draws:
        updates = np.arange(1, equal.shape[1] + 1)
        equal[3] = updates < FROM_WORKERS.get((script, source, after), LAST + 1)
        equal[4] = np.logical_and.accumulate(equal[:4].all(axis=0))
    return equal


def worker_noise(script: str, source: str, draws: int, after: int, method: str, updates: int = LAST) -> list[float]:
    """Mean brightness of each update when two real worker processes make the examples: what FROM_WORKERS records."""
    means: list[float] = []
    with randomness.preserved():
        run = Script(script, source, draws, after)
        for epoch in range(-(-updates // EPOCH)):
            run.data.epoch = epoch
            loader: DataLoader[Any] = DataLoader(
                _Brightness(run.data),
                BATCH,
                num_workers=2,
                multiprocessing_context=method,
            )
            for batch in loader:
                means.append(float(batch.mean()))
                run.drink(len(means))
    return means[:updates]


class _Brightness(Dataset[float]):
    """Only the noise of each example, in index order: with it the order does not enter."""

    def __init__(self, images: Images) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> float:
        return self.images.noise(index)
