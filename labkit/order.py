"""The order of the data: a pure function of (seed, epoch), so only a cursor is ever saved (lessons 02 and 04).

Two orders. `randperm` draws the whole permutation of an epoch (8 bytes an example). `feistel` computes the example at
any position by itself, in constant memory, however large the data set: a Feistel network (H. Feistel, "Cryptography
and Computer Privacy", Scientific American 228(5), 1973) permutes a power of two, and what falls outside the data set
walks on along its cycle until it is back inside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from labkit.errors import ConfigError, DataError, StateError
from labkit.randomness import numpy_generator, torch_generator

ROUNDS = 16  # half of them do for more than 256 examples; measured: with 8, five examples come in visibly uneven orders
BLOCK = 8192  # feistel positions are computed and kept this many at a time: numpy is slow on short arrays
LONGEST = 2**62


@dataclass(frozen=True)
class Cursor:
    """A position in the data order: epochs finished, and examples of the present one consumed by finished attempts."""

    epoch: int = 0
    examples: int = 0

    def advanced(self, n: int, length: int) -> Cursor:
        """The cursor n examples on, in epochs of length examples; the end of an epoch is the start of the next.

        Raises StateError when n reaches beyond the end of the epoch: an update never mixes two epochs.
        """
        examples = self.examples + n
        if n < 0 or examples > length:
            raise StateError(
                f"a cursor at example {self.examples} of {length} was asked to move on by {n}",
                f"0 to {length - self.examples}",
                "cut the last update of an epoch short",
            )
        return Cursor(self.epoch + 1, 0) if examples == length else Cursor(self.epoch, examples)


@dataclass(frozen=True)
class EpochOrder:
    """The order of the examples 0 to length - 1 in every epoch.

    Raises ConfigError for an unknown kind and DataError for a length outside 1 to 2**62.
    """

    kind: Literal["randperm", "feistel"]
    seed: int
    length: int
    _kept: dict[tuple[int, int], np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in ("randperm", "feistel"):
            raise ConfigError(f"order {self.kind!r} is not known", "'randperm' or 'feistel'")
        if not 1 <= self.length <= LONGEST:
            raise DataError(f"a data set of {self.length} examples cannot be ordered", "at least one example")

    def indices(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """The examples at the positions start to stop - 1 of an epoch, int64 of shape (stop - start,).

        `feistel` costs the same at any start and needs memory for stop - start examples; `randperm` keeps one epoch.
        Raises StateError for positions outside the epoch.
        """
        if epoch < 0 or not 0 <= start <= stop <= self.length:
            raise StateError(
                f"positions {start} to {stop} of epoch {epoch} were asked for",
                f"an epoch of at least 0 and positions within 0 to {self.length}",
            )
        block = BLOCK if self.kind == "feistel" else self.length
        if start // block != max(stop - 1, start) // block:  # over the edge of a block
            edges = [start, *range((start // block + 1) * block, stop, block), stop]
            return np.concatenate([self.indices(epoch, a, b) for a, b in zip(edges, edges[1:], strict=False)])
        first = start // block * block
        if (epoch, first) not in self._kept:
            permuted = self._block(epoch, first, min(first + block, self.length))
            self._kept.clear()
            self._kept[epoch, first] = permuted
        return self._kept[epoch, first][start - first : stop - first].copy()

    def _block(self, epoch: int, first: int, last: int) -> np.ndarray:
        if self.kind == "feistel":
            return feistel(np.arange(first, last, dtype=np.uint64), self.length, round_keys(self.seed, epoch))
        import torch

        return torch.randperm(self.length, generator=torch_generator("order", self.seed, epoch)).numpy()


def round_keys(seed: int, epoch: int) -> np.ndarray:
    """One 64-bit key for each round of the network, uint64 of shape (ROUNDS,)."""
    return numpy_generator("order", seed, epoch).integers(0, 2**64, ROUNDS, dtype=np.uint64)


def feistel(positions: np.ndarray, length: int, keys: np.ndarray) -> np.ndarray:
    """The keyed permutation of 0 to length - 1 at the given positions: uint64 in, int64 of the same shape out.

    The width comes from the *length*, not from its logarithm as a float or from the largest index, so it holds at
    every length. The power of two is less than twice the length (or 4), so on average less than one walk is needed.
    """
    width = max(2, (length - 1).bit_length())
    values = _network(positions, width, keys)
    outside = np.flatnonzero(values >= length)
    while len(outside):
        values[outside] = _network(values[outside], width, keys)
        outside = outside[values[outside] >= length]
    return values.astype(np.int64)


def _network(values: np.ndarray, width: int, keys: np.ndarray) -> np.ndarray:
    """A permutation of 0 to 2**width - 1: each round mixes one half into the other, which can be undone."""
    left_width, right_width = width // 2, width - width // 2
    left, right = values >> np.uint64(right_width), values & np.uint64(2**right_width - 1)
    for round_key in keys if width <= 8 else keys[: ROUNDS // 2]:
        mixed = (right ^ round_key) * np.uint64(0x9E3779B97F4A7C15)  # wraps at 2**64, as it should
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(0xD6E8FEB86659FD93)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0x94D049BB133111EB)
        left, right = right, left ^ (mixed >> np.uint64(64 - left_width))
        left_width, right_width = right_width, left_width
    return (left << np.uint64(right_width)) | right


def cut(n: int, sizes: Sequence[int]) -> list[slice]:
    """Cut an update of n examples into microbatches: sizes are used in turn until n is covered; none: one piece.

    cut(10, (4,)) gives slices of 4, 4 and 2. Raises ConfigError for a size below 1.
    """
    if any(size < 1 for size in sizes):
        raise ConfigError(f"microbatch sizes {tuple(sizes)} were given", "sizes of at least 1")
    pieces: list[slice] = []
    start = 0
    while start < n:
        size = sizes[len(pieces) % len(sizes)] if sizes else n
        pieces.append(slice(start, min(start + size, n)))
        start += size
    return pieces


def digest(indices: np.ndarray) -> str:
    """16 hexadecimal characters that stand for these indices in this order."""
    return hashlib.blake2b(np.ascontiguousarray(indices, dtype="<i8").tobytes(), digest_size=8).hexdigest()
