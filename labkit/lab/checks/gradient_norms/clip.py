"""Check of lesson 07: clipping by the norm of all gradients together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit import randomness
from labkit.lab.checks.frame import call, check, near, not_yet, number
from labkit.lab.checks.result import TODO

LESSON = "07_gradient_norms"
Gradients = list[Tensor | None]


def _flat(gradients: Sequence[Tensor | None]) -> Tensor:
    return torch.cat([g.double().flatten() for g in gradients if g is not None])


def _of(*values: Sequence[float] | None) -> Gradients:
    return [None if v is None else torch.tensor(v) for v in values]


def _shown(gradients: Sequence[Tensor | None]) -> str:
    return " and ".join("None" if g is None else ", ".join(f"{x:.3g}" for x in g.flatten().tolist()) for g in gradients)


@check("clip", LESSON, minutes=15)
def check_clip(answer: Callable[..., Any], seed: int) -> str:
    """`clip(gradients, max_norm) -> float`: scale all gradients in place so that their common norm is at most max_norm.

    gradients: list of tensors and None (no gradient; stays None). Returned is the norm before. Below the limit nothing
    changes. A gradient that is not finite is refused with an exception; a huge finite one is clipped like any other.
    """
    _judge_common(answer, seed)
    _judge_small(answer)
    _judge_none(answer)
    _judge_nonfinite(answer)
    _judge_huge(answer, seed)
    return "One norm, one factor, direction kept, also at the edge of the number range."


def _judge_common(answer: Callable[..., Any], seed: int) -> None:
    generator = randomness.torch_generator("check clip", seed)
    gradients: Gradients = [
        torch.randn(n, generator=generator) * scale for n, scale in ((3, 4.0), (4, 2.0), (2, 8.0), (5, 1.0))
    ]
    before, limit = _flat(gradients), 1.0
    norm = float(before.norm())
    got = number(call(answer, gradients, limit), "The returned norm")
    after = _flat(gradients)
    case = f"{len(gradients)} tensors of common norm {norm:.3g}, limit 1"
    if not near(float(after.norm()), limit, 1e-4) or not torch.allclose(after, before / norm, atol=1e-5):
        _wrong_scaling(gradients, before, after, case)
    if near(got, float(after.norm()), 1e-4):
        not_yet(
            "returns the norm after",
            f"{got:.3g} every time something is clipped: a log of that tells nothing.",
            expected=f"{norm:.4g}",
            seen=f"{got:.4g}",
            smallest=case,
            try_next="Measure first, scale afterwards.",
        )
    if not near(got, norm, 1e-4):
        not_yet(
            "another norm",
            expected=f"{norm:.4g}",
            seen=f"{got:.4g}",
            smallest=case,
            try_next="The root of the sum of all squares, over all tensors.",
        )


def _wrong_scaling(gradients: Gradients, before: Tensor, after: Tensor, case: str) -> None:
    norms = [float(g.double().norm()) for g in gradients if g is not None]
    cosine = float(before @ after / (before.norm() * after.norm()).clamp(min=1e-30))
    angle = math.degrees(math.acos(max(-1.0, min(1.0, cosine))))
    if torch.equal(before, after):
        not_yet(
            "nothing clipped",
            expected="a common norm of 1",
            seen=f"{float(after.norm()):.3g}, as before",
            smallest=case,
            try_next="Change the tensors in place, with mul_.",
        )
    if all(n <= 1.0001 for n in norms) and sum(n > 0.999 for n in norms) > 1:
        not_yet(
            "each tensor by itself",
            f"Every tensor has norm 1, together {float(after.norm()):.3g}; the direction turned {angle:.0f} degrees.",
            expected="a common norm of 1, direction kept",
            seen=f"norm {float(after.norm()):.3g}",
            smallest=case,
            try_next="One norm over all tensors, one factor for all of them.",
        )
    if float(after.abs().max()) <= 1.0001 and bool(((after == before) | (after.abs() > 0.999)).all()):
        not_yet(
            "cuts values",
            f"Entries above 1 became 1: the direction turned by {angle:.0f} degrees.",
            expected="every entry scaled by the same factor",
            seen=f"largest entry {float(after.abs().max()):.3g}, norm {float(after.norm()):.3g}",
            smallest=case,
            try_next="Multiply, do not clamp.",
        )
    not_yet(
        "another scaling",
        expected="a common norm of 1, direction kept",
        seen=f"norm {float(after.norm()):.4g}, direction turned by {angle:.0f} degrees",
        smallest=case,
        try_next="Multiply every tensor by max_norm / norm.",
    )


def _judge_small(answer: Callable[..., Any]) -> None:
    gradients = _of([3.0], [4.0])
    call(answer, gradients, 10.0)
    if not torch.equal(_flat(gradients), torch.tensor([3.0, 4.0], dtype=torch.float64)):
        up = float(_flat(gradients).norm()) > 5
        not_yet(
            "scales up" if up else "changes small gradients",
            f"3 and 4 with limit 10 became {_shown(gradients)}. Below the limit nothing happens.",
            expected="3 and 4",
            seen=_shown(gradients),
            smallest="[3], [4], limit 10",
            try_next="Scale only when norm > max_norm.",
        )
    zeros = _of([0.0], [0.0])
    call(answer, zeros, 1.0)
    if bool(_flat(zeros).isnan().any()):
        not_yet(
            "zero becomes NaN",
            expected="0 and 0",
            seen=_shown(zeros),
            smallest="[0], [0], limit 1",
            try_next="0/0: scale only above the limit.",
        )


def _judge_none(answer: Callable[..., Any]) -> None:
    gradients = _of([3.0], None, [4.0])
    call(answer, gradients, 1.0)
    if len(gradients) != 3 or gradients[1] is not None:
        not_yet(
            "None becomes something",
            "A parameter without gradient is not a zero: leave it None.",
            expected="None stays in its place",
            seen=_shown(gradients),
            smallest="[3], None, [4], limit 1",
            try_next="Skip None when measuring and when scaling.",
        )


def _judge_nonfinite(answer: Callable[..., Any]) -> None:
    for bad in (math.inf, math.nan):
        gradients = _of([3.0, bad], [4.0])
        try:
            got = answer(gradients, 1.0)
        except Exception:  # any refusal is right here
            continue
        if got is TODO:
            continue
        after = _flat(gradients)
        finite = bool(after.isfinite().all())
        lost = int((~after.isfinite()).sum())
        not_yet(
            "infinity becomes zeros" if finite else "spreads what is not finite",
            "One entry was not finite, and you returned finite numbers: the fault is hidden. Refuse."
            if finite
            else f"One entry was {bad}; now {lost} of {after.numel()} are not finite: {_shown(gradients)}.",
            expected="an exception",
            seen=_shown(gradients),
            smallest=f"[3, {bad}], [4], limit 1",
            try_next="Ask torch.isfinite of the entries before scaling, and raise.",
        )


def _judge_huge(answer: Callable[..., Any], seed: int) -> None:
    size = 1e20 * (1 + seed % 3)
    gradients = _of([3 * size], [4 * size])
    got = number(call(answer, gradients, 1.0), "The returned norm")
    after, case = _flat(gradients), f"{3 * size:.0e} and {4 * size:.0e}, limit 1"
    if not math.isfinite(got) or not torch.allclose(after, torch.tensor([0.6, 0.8], dtype=torch.float64), atol=1e-4):
        not_yet(
            "overflow",
            f"{3 * size:.0e} and {4 * size:.0e} are finite; your norm is {got:.3g}, they became {_shown(gradients)}.",
            expected=f"norm {5 * size:.0e}, then 0.6 and 0.8",
            seen=f"norm {got:.3g}, then {_shown(gradients)}",
            smallest=case,
            try_next="Squares overflow: divide by the largest entry first, or measure in float64.",
        )
