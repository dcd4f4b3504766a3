"""Check of lesson 06: lend the averaged weights to the model and take them back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from labkit import randomness
from labkit.lab.checks.frame import call, check, not_yet, shown, theirs

LESSON = "06_ema"


class _Planned(Exception):
    """The exception that the check raises inside the block."""


def _scene(seed: int) -> tuple[nn.Module, dict[str, Tensor]]:
    randomness.seed_all("check borrow", seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    model(torch.randn(8, 4))
    average = {
        name: v + 0.1 * torch.randn(v.shape) if v.is_floating_point() else v + 3
        for name, v in model.state_dict().items()
    }
    return model, {name: value.detach().clone() for name, value in average.items()}


def _state(model: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(dict(model.state_dict()))


def _off(a: dict[str, Tensor], b: dict[str, Tensor]) -> list[str]:
    return [name for name in a if not torch.equal(a[name], b[name])]


@check("borrowed", LESSON, minutes=15)
def check_borrowed(answer: Callable[..., Any], seed: int) -> str:
    """`with borrowed(model, average):` the model carries the average; afterwards its own, bit for bit.

    average: name -> tensor for every entry of model.state_dict(), buffers included. Holds also when the block raises,
    and nothing done to the model inside the block reaches the average. The exception goes on to the caller.
    """
    model, average = _scene(seed)
    own, kept = _state(model), copy.deepcopy(average)
    parameters = [id(p) for p in model.parameters()]
    manager = call(answer, model, average)
    if not hasattr(manager, "__enter__") or not hasattr(manager, "__exit__"):
        not_yet(
            "not a context",
            expected="something for `with`",
            seen=shown(manager),
            try_next="Use @contextmanager and one yield.",
        )
    with theirs():
        manager.__enter__()
    inside = _off(kept, _state(model))
    with torch.no_grad():
        model(torch.randn(8, 4))
        for p in model.parameters():
            p.add_(1.0)
    with theirs():
        manager.__exit__(None, None, None)
    if inside:
        _judge_inside(inside, own)
    _judge_after(model, own, kept)
    if _off(kept, average):
        not_yet(
            "average changed too",
            f"{len(_off(kept, average))} entries of the average differ after the block: swap copies, not names.",
            expected="the average as it was",
            seen=f"{_off(kept, average)[0]} changed",
            smallest="the model is moved inside the block",
            try_next="Copy the numbers into the model's own tensors.",
        )
    if parameters != [id(p) for p in model.parameters()]:
        not_yet(
            "other parameters",
            "The optimizer holds the old ones.",
            expected="the same Parameter objects",
            seen="new ones",
            try_next="Copy into them; do not assign.",
        )
    _judge_exception(answer, seed)
    return "Lent, given back bit for bit, also after an exception, and the average never moved."


def _judge_inside(off: list[str], own: dict[str, Tensor]) -> None:
    buffers = [name for name in off if "running" in name or "tracked" in name]
    if len(buffers) == len(off):
        not_yet(
            "buffers forgotten",
            "Inside the block the weights are the average's, the statistics are not.",
            expected="all of the average",
            seen=f"{off[0]} is the model's own",
            try_next="Go through state_dict(), not parameters().",
        )
    not_yet(
        "nothing borrowed",
        expected="the averaged weights inside the block",
        seen=f"{len(off)} of {len(own)} tensors differ",
        try_next="Load the average before the yield.",
    )


def _judge_after(model: nn.Module, own: dict[str, Tensor], average: dict[str, Tensor]) -> None:
    now = _state(model)
    off = _off(own, now)
    if not off:
        return
    buffers = [name for name in off if "running" in name or "tracked" in name]
    if len(buffers) == len(off):
        not_yet(
            "buffers forgotten",
            f"Weights came back, `{off[0]}` did not.",
            expected="statistics as before",
            seen=f"{off[0]} differs",
            try_next="Go through state_dict(), not parameters().",
        )
    weights = [name for name in off if name not in buffers]
    gap = max(float((now[name] - own[name]).abs().max()) for name in weights)
    if gap < 1e-4:
        not_yet(
            "gives back by arithmetic",
            f"Equal to {gap:.0e}, not in bits: what was added cannot be subtracted exactly.",
            expected="the same bits",
            seen=f"{gap:.0e} off",
            smallest=weights[0],
            try_next="Keep a copy, and copy it back.",
        )
    moved = all(
        torch.allclose(now[name], average[name] + 1.0) or torch.equal(now[name], average[name]) for name in weights
    )
    not_yet(
        "backup by reference" if moved else "not given back",
        "After the block the weights are the averaged ones: the backup pointed at the same tensors." if moved else "",
        expected="the model's own weights",
        seen=f"{weights[0]} differs",
        try_next="state_dict() returns the tensors themselves; clone each one.",
    )


def _judge_exception(answer: Callable[..., Any], seed: int) -> None:
    model, average = _scene(seed)
    own = _state(model)
    swallowed = False
    with theirs():
        try:
            with answer(model, average):
                raise _Planned
            swallowed = True
        except _Planned:
            pass
    if _off(own, _state(model)):
        not_yet(
            "no finally",
            "An error in evaluation left the averaged weights in training.",
            expected="the model's own weights",
            seen=f"{_off(own, _state(model))[0]} differs",
            smallest="the block raises an exception",
            try_next="Put the yield into try, the giving back into finally.",
        )
    if swallowed:
        not_yet(
            "swallows the exception",
            expected="the exception goes on to the caller",
            seen="it disappeared",
            smallest="the block raises an exception",
            try_next="finally, not except.",
        )
