"""Better, worse, or cannot tell: two methods compared in pairs, with an interval. Lesson 08."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.errors import ConfigError

T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Two-sided 95% points of Student's t for 1 to 30 degrees of freedom (any statistics table)."""


def t_95(degrees: int) -> float:
    """The factor from a standard error to a 95% interval; above 30 degrees nearly that of the normal law, 1.96."""
    if degrees < 1:
        return math.inf
    return T_95[degrees - 1] if degrees <= len(T_95) else 1.960 + 2.46 / degrees


@dataclass(frozen=True)
class Verdict:
    """A paired comparison: mean difference (second minus first), half width of its 95% interval, and what it means."""

    verdict: str  # of the second against the first: better, worse, cannot tell
    mean: float
    half_width: float
    pairs: int
    wins: int  # pairs in which the second was better
    why: str = ""  # why it cannot be told

    def __str__(self) -> str:
        width = "no interval" if math.isinf(self.half_width) else f"+/- {self.half_width:.4g}"
        pairs = "pair" if self.pairs == 1 else "pairs"
        text = f"{self.verdict} ({self.mean:+.4g} {width} over {self.pairs} {pairs}, better in {self.wins})"
        return f"{text}: {self.why}" if self.why else text


def paired(first: Sequence[float], second: Sequence[float], mode: str = "min") -> Verdict:
    """Compare two methods over the same seeds, in order. mode: "min" if lower is better, "max" if higher is.

    "cannot tell" when the 95% interval of the mean difference holds zero, with fewer than two pairs, with values that
    are not finite, and when all differences are the same: then there is no spread to judge by.
    Raises ConfigError for lists of different lengths, none at all, or another mode.
    """
    if len(first) != len(second) or not len(first):
        raise ConfigError(f"{len(first)} values against {len(second)}", "one pair for each seed", "give both lists")
    if mode not in {"min", "max"}:
        raise ConfigError(f"mode={mode!r}", "min or max", "say which way is better; it is not guessed from a name")
    differences = [b - a for a, b in zip(first, second, strict=True)]
    n, sign = len(differences), -1 if mode == "min" else 1
    wins = sum(sign * difference > 0 for difference in differences)
    if not all(map(math.isfinite, differences)):
        return Verdict("cannot tell", math.nan, math.inf, n, wins, "a value is not finite")
    mean = math.fsum(differences) / n
    if n < 2:
        return Verdict("cannot tell", mean, math.inf, n, wins, "one pair has no spread")
    half = t_95(n - 1) * statistics.stdev(differences) / math.sqrt(n)
    if half == 0:
        why = "no difference at all" if mean == 0 else "every pair differs by the same, so there is no spread"
        return Verdict("cannot tell", mean, half, n, wins, why)
    if abs(mean) <= half:
        return Verdict("cannot tell", mean, half, n, wins, "the interval holds zero")
    return Verdict("better" if sign * mean > 0 else "worse", mean, half, n, wins)

