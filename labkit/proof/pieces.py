"""The pieces of state that can be lost one by one at a resume. Lesson 04.

Each takes a saved state (changed in place) and that of a run that has just been built, as a resume that forgot the
piece would find it; it returns False when the recipe keeps no such piece.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from labkit.state import Saved

Piece = Callable[[Saved, Saved], bool]


def _whole(part: str) -> Piece:
    def lose(saved: Saved, fresh: Saved) -> bool:
        if not saved[part]:
            return False
        saved[part] = fresh[part]
        return True

    return lose


def _optimizer_state(saved: Saved, fresh: Saved) -> bool:
    had = bool(saved["optimizer"]["state"])
    saved["optimizer"]["state"] = fresh["optimizer"]["state"]
    return had


def _zeroed(*keys: str) -> Piece:
    """Some values of every parameter's optimizer state, put back to the zeros they start from."""

    def lose(saved: Saved, fresh: Saved) -> bool:
        found = False
        for values in saved["optimizer"]["state"].values():
            for key in keys:
                if key in values:
                    found = True
                    values[key] = torch.zeros_like(values[key]) if isinstance(values[key], torch.Tensor) else 0
        return found

    return lose


def _schedule(saved: Saved, fresh: Saved) -> bool:
    """The schedule begins again, and with it the rate of every group."""
    moved = saved["schedule"] != fresh["schedule"]
    saved["schedule"] = fresh["schedule"]
    for group, new in zip(saved["optimizer"]["groups"], fresh["optimizer"]["groups"], strict=True):
        group["lr"] = new["lr"]
    return moved


def _scaler(saved: Saved, fresh: Saved) -> bool:
    if "scale" not in saved["scaler"]:
        return False
    saved["scaler"] = fresh["scaler"]
    return True


def _average(saved: Saved, fresh: Saved) -> bool:
    """A new average, made from the restored weights, with nothing counted."""
    if saved["ema"] is None:
        return False
    for name in saved["ema"]["average"]:
        saved["ema"]["average"][name] = saved["model"]["state"][name].clone()
    saved["ema"]["count"] = 0
    return True


def _average_count(saved: Saved, fresh: Saved) -> bool:
    if saved["ema"] is None:
        return False
    saved["ema"]["count"] = 0
    return True


def _buffers(saved: Saved, fresh: Saved) -> bool:
    """Everything in the model that is no parameter: BatchNorm's running statistics above all."""
    names = [name for name in saved["model"]["state"] if name not in saved["model"]["trainable"]]
    for name in names:
        saved["model"]["state"][name] = fresh["model"]["state"][name]
    saved["model"]["hidden_buffers"] = fresh["model"]["hidden_buffers"]
    return bool(names)


def _cursor(saved: Saved, fresh: Saved) -> bool:
    """The epoch is known, the place in it is not: it begins again."""
    saved["cursor"]["examples"] = 0
    return True


def _epoch(saved: Saved, fresh: Saved) -> bool:
    saved["cursor"]["epoch"] = 0
    return True


def _stream(name: str) -> Piece:
    def lose(saved: Saved, fresh: Saved) -> bool:
        saved["rng"][name] = fresh["rng"][name]
        return bool(saved["rng"][name]) if name in {"cuda", "generators"} else True

    return lose


def _best(saved: Saved, fresh: Saved) -> bool:
    had = saved["best"]["value"] is not None
    saved["best"]["value"], saved["best"]["update"] = None, None
    return had


def _patience(saved: Saved, fresh: Saved) -> bool:
    had = saved["best"]["value"] is not None
    saved["best"]["without_improvement"] = 0
    return had


PIECES: dict[str, Piece] = {
    "optimizer": _optimizer_state,
    "first moment": _zeroed("exp_avg"),
    "second moment": _zeroed("exp_avg_sq"),
    "both moments": _zeroed("exp_avg", "exp_avg_sq"),
    "optimizer counts": _zeroed("step"),
    "momentum": _zeroed("momentum_buffer"),
    "schedule": _schedule,
    "scaler": _scaler,
    "average": _average,
    "average's count": _average_count,
    "buffers": _buffers,
    "cursor": _cursor,
    "epoch": _epoch,
    "python stream": _stream("python"),
    "numpy stream": _stream("numpy"),
    "torch stream": _stream("torch"),
    "cuda streams": _stream("cuda"),
    "own generators": _stream("generators"),
    "stateful objects": _whole("stateful"),
    "best": _best,
    "patience": _patience,
}
"""What `labkit ablate --drop` and the lessons' widgets offer, in the order in which they are taught."""
