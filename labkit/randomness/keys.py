"""Keys: names and numbers, such as (seed, epoch, example), become a generator of their own. Lesson 02."""

from __future__ import annotations

import hashlib
import operator
import random
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


def _digest(parts: tuple[int | str, ...], size: int) -> bytes:
    # repr quotes strings and separates the parts, so no two different lists of parts write the same bytes.
    plain = tuple(part if isinstance(part, str) else int(operator.index(part)) for part in parts)
    return hashlib.blake2b(repr(plain).encode(), digest_size=size).digest()


def key(*parts: int | str) -> int:
    """A number in [0, 2**63) made of parts, the same in every process and on every machine.

    A hash and not a sum: key(seed, epoch + 1) and key(seed + 1, epoch) have nothing in common.
    """
    return int.from_bytes(_digest(parts, 8), "little") >> 1


class _Words:
    """Hands ready key words to a numpy bit generator, which would otherwise ask the system for entropy first."""

    def __init__(self, words: np.ndarray) -> None:
        self.words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        return self.words.view(dtype)[:n_words]


np.random.bit_generator.ISeedSequence.register(_Words)


def numpy_generator(*parts: int | str) -> np.random.Generator:
    """A numpy generator of its own for parts: Philox with a key of 128 bits, about 5 microseconds to make."""
    return np.random.Generator(np.random.Philox(_Words(np.frombuffer(_digest(parts, 16), np.uint64))))  # type: ignore


def torch_generator(*parts: int | str) -> torch.Generator:
    """A torch CPU generator of its own for parts. Torch uses the lower 32 bits of a seed on the CPU."""
    import torch

    return torch.Generator().manual_seed(key(*parts))


def seed_cpu(*parts: int | str) -> None:
    """Seed the global streams of python, numpy and torch on the CPU only: what a worker process may touch."""
    import torch

    random.seed(key("python", *parts))
    np.random.seed(np.frombuffer(_digest(("numpy", *parts), 16), np.uint32))
    torch.default_generator.manual_seed(key("torch", *parts))


def seed_all(*parts: int | str) -> None:
    """Seed the global streams: python, numpy, torch CPU and every CUDA device, each with a key of its own."""
    import torch

    seed_cpu(*parts)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(key("cuda", *parts))
