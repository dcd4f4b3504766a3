"""A saved state as names and leaves: its exact bytes, one digest for each part, a copy of it. Lesson 04."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Set
from typing import Any

import torch
from torch import Tensor

Saved = dict[str, Any]


def leaves(saved: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, tensor or plain value) of every leaf of a saved state, in a fixed order."""
    if isinstance(saved, Mapping):
        for key in sorted(saved, key=str):
            yield from leaves(saved[key], f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(saved, list | tuple):
        for index, value in enumerate(saved):
            yield from leaves(value, f"{prefix}.{index}")
    else:
        yield prefix, saved


def leaf_bytes(value: Any) -> bytes:
    """The exact content of a leaf: dtype, shape and bits of a tensor; type and repr of a plain value."""
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        head = f"{plain.dtype}{tuple(plain.shape)}".encode()
        return head + plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{type(value).__name__}:{value!r}".encode()


def part_of(name: str, parameters: Set[str]) -> str:
    """The name under which a leaf is reported: parameters, buffers, optimizer.exp_avg, rng.torch, ema.average, ..."""
    first, _, rest = name.partition(".")
    kind, _, tail = rest.partition(".")
    if first == "model":
        if kind not in {"state", "hidden_buffers"}:
            return f"model.{kind}"
        return "parameters" if tail in parameters else "buffers"
    if first == "optimizer":
        return "optimizer." + (tail.rpartition(".")[2] if kind == "state" else kind)
    if first == "rng":
        return "rng." + (tail.split(".")[0] if kind == "generators" else kind)
    if first in {"ema", "best", "counters", "cursor", "stateful"}:
        return f"{first}.{kind}" if kind else first
    return first


_REPORTED = ("parameters", "buffers", "optimizer", "ema", "schedule", "scaler", "counters", "cursor", "best", "rng")


def digests(saved: Saved) -> dict[str, str]:
    """One short digest for each part, in the order in which a difference is reported (parameters first)."""
    hashes: dict[str, Any] = {}
    parameters = saved["model"]["trainable"].keys()
    for name, value in leaves(saved):
        found = hashes.setdefault(part_of(name, parameters), hashlib.blake2b(digest_size=8))
        found.update(name.encode() + b"\0" + leaf_bytes(value))
    return {part: hashes[part].hexdigest() for part in sorted(hashes, key=_place)}


def _place(part: str) -> tuple[int, str]:
    first = part.split(".")[0]
    return (_REPORTED.index(first) if first in _REPORTED else len(_REPORTED), part)


def cloned(saved: Any) -> Any:
    """A saved state whose tensors share no memory with live ones."""
    if isinstance(saved, Tensor):
        return saved.detach().clone()
    if isinstance(saved, dict):
        return {name: cloned(value) for name, value in saved.items()}
    if isinstance(saved, list | tuple):
        return type(saved)(cloned(value) for value in saved)
    return saved
