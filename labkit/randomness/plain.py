"""States of generators as tensors and plain values, and back: restricted loading accepts nothing else. Lesson 02."""

from __future__ import annotations

from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Numpy arrays become {"dtype", "bytes"}, tuples become lists; restricted loading accepts nothing else."""
    import torch

    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "bytes": torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8)}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, tuple) and len(value) == 625:  # python's own generator: 625 words
        return plain(np.array(value, np.uint32))
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def alive(value: Any) -> Any:
    """What plain() made, as arrays again."""
    if isinstance(value, dict) and value.keys() == {"dtype", "bytes"}:
        return np.frombuffer(value["bytes"].cpu().numpy().tobytes(), value["dtype"])
    if isinstance(value, dict):
        return {name: alive(item) for name, item in value.items()}
    return value


def python_state(saved: Any) -> tuple[Any, ...]:
    """What random.setstate() takes, from the plain form of what random.getstate() gave."""
    version, words, gauss = saved
    return version, tuple(alive(words).tolist()), gauss
