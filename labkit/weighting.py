"""Sums and counts: the arithmetic that makes every cut of a batch weigh the same (lesson 03).

A loss or metric stays a numerator and a denominator until the last moment: adding two of them is exact in meaning,
averaging two averages is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from labkit.errors import WeightingError

Unit = Literal["token", "sequence"]


@dataclass(frozen=True, slots=True)
class Total:
    """A sum over count things. `a + b` is the total over both; `sum(totals, Total.zero())` over many."""

    sum: float
    count: int

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 0:
            raise WeightingError(
                f"a count of {self.count!r}",
                "a whole number of things, zero or more",
                "count valid targets, not batches",
            )

    @classmethod
    def zero(cls) -> Total:
        """The total over nothing."""
        return cls(0.0, 0)

    @classmethod
    def from_tensors(cls, sum: Tensor | float, count: Tensor | int) -> Total:
        """From scalars on any device; waits for the device. Raises WeightingError when one is no scalar or no count."""
        for name, value in (("sum", sum), ("count", count)):
            if isinstance(value, Tensor) and value.numel() != 1:
                raise WeightingError(f"the {name} has shape {tuple(value.shape)}", "one number", "add up first")
        number = float(count)
        if not number.is_integer():
            raise WeightingError(f"a count of {number!r}", "a whole number of things", "count valid targets")
        return cls(float(sum), int(number))

    def __add__(self, other: Total) -> Total:
        return Total(self.sum + other.sum, self.count + other.count)

    @property
    def mean(self) -> float:
        """sum / count. Raises WeightingError when nothing was counted: 0/0 has no value, and NaN would travel."""
        if self.count == 0:
            raise WeightingError(
                "a mean over nothing was asked for", "at least one valid target", "look at count first"
            )
        return self.sum / self.count


def count_valid(targets: Tensor, ignore_index: int = -100, per: Unit = "token") -> int:
    """How many targets (per="token") or rows with at least one target (per="sequence") carry weight.

    targets: integers of shape (batch,) or (batch, length, ...); entries equal to ignore_index are padding.
    """
    valid = targets != ignore_index
    if _checked(per) == "sequence" and valid.dim() > 1:
        valid = valid.flatten(1).any(dim=1)
    return int(valid.sum())


def cross_entropy_sum(
    logits: Tensor, targets: Tensor, *, ignore_index: int = -100, per: Unit = "token"
) -> tuple[Tensor, int]:
    """Summed cross entropy in nats and how many it sums over.

    logits: (batch, classes) or (batch, length, ..., classes), classes last; targets: the same shape without classes.
    per="token": every valid target weighs the same. per="sequence": every row weighs the same, whatever its length (its
    own mean over valid targets is one term). These are two different objectives. Padding enters neither sum nor count;
    a batch of nothing but padding gives (0, 0) with a graph whose gradient is zero. Half precision is summed in
    float32.
    Raises WeightingError when the shapes do not belong together.
    """
    if logits.shape[:-1] != targets.shape or logits.dim() < 1:
        raise WeightingError(
            f"logits of shape {tuple(logits.shape)} with targets of shape {tuple(targets.shape)}",
            "logits shaped like the targets with one more dimension at the end, the classes",
            "move the classes last, for instance logits.movedim(1, -1)",
        )
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    flat, wanted = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    if _checked(per) == "token" or targets.dim() < 2:
        total = cross_entropy(flat, wanted, ignore_index=ignore_index, reduction="sum")
        return total, count_valid(targets, ignore_index)
    losses = cross_entropy(flat, wanted, ignore_index=ignore_index, reduction="none").view(targets.shape).flatten(1)
    lengths = (targets != ignore_index).flatten(1).sum(dim=1)
    total = (losses.sum(dim=1) / lengths.clamp(min=1)).sum()
    return total, int((lengths > 0).sum())


def _checked(per: str) -> str:
    if per not in ("token", "sequence"):
        raise WeightingError(f"per={per!r}", "per='token' or per='sequence'", "say which of the two weighs the same")
    return per


def perplexity(total: Total) -> float:
    """exp(sum / count) of a total in nats: the exponential comes last, after all batches are in. inf on overflow."""
    mean = total.mean
    return math.exp(mean) if not mean > 709.0 else math.inf


def check_additive(
    objective: Callable[[Any], tuple[Tensor, int]], batch_a: Any, batch_b: Any, joined: Any, *, rtol: float = 1e-3
) -> None:
    """Check that the objective returns sums: f(A) + f(B) = f(A and B), and the counts likewise.

    objective takes a batch and returns (sum, count); joined holds the examples of both batches. Call it in eval mode:
    dropout and batch statistics are not additive. rtol is relative to |f(A)| + |f(B)|; a mean is off by a half,
    rounding in float32 by less than 1e-5, in bfloat16 by about 1e-2. Values that are not finite are not judged here.
    Raises WeightingError with the three numbers.
    """
    with torch.no_grad():
        (a, count_a), (b, count_b), (both, count_both) = (
            _evaluated(objective, batch) for batch in (batch_a, batch_b, joined)
        )
    if count_a + count_b != count_both:
        raise WeightingError(
            f"the counts are {count_a} for A, {count_b} for B, but {count_both} for A and B together",
            f"{count_a + count_b}",
            "count every valid target once, and return that number, not a number of batches",
        )
    if not all(map(math.isfinite, (a, b, both))):
        return
    if abs(a + b - both) <= rtol * (abs(a) + abs(b)):
        return
    mean = (a * count_a + b * count_b) / max(1, count_both)
    looks_like_mean = abs(both - mean) <= 2 * rtol * (abs(a) + abs(b))
    raise WeightingError(
        f"the objective gives {a:.6g} for A, {b:.6g} for B, but {both:.6g} for A and B together",
        f"{a + b:.6g}, the sum of both",
        "it returns a mean: multiply by the count, or use reduction='sum'"
        if looks_like_mean
        else "return the sum over valid targets; terms that do not depend on the examples do not belong in it",
    )


def _evaluated(objective: Callable[[Any], tuple[Tensor, int]], batch: Any) -> tuple[float, int]:
    answer = objective(batch)
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise WeightingError(
            f"the objective returned a {type(answer).__name__}", "a pair (sum, count)", "return loss_sum, count"
        )
    total = Total.from_tensors(*answer)
    return total.sum, total.count
