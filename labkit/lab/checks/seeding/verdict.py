"""Check of lesson 02: a verdict over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from labkit import randomness
from labkit.lab.checks.frame import call, check, near, not_yet, number, shown

LESSON = "02_seeding"


Pairs = tuple[np.ndarray, np.ndarray]


def placebo(seed: int, seeds: int = 20) -> Pairs:
    """Losses of two methods that differ by luck only; the luckiest single run belongs to the second."""
    for attempt in range(10_000):
        rng = randomness.numpy_generator("placebo", seed, seeds, attempt)
        shared = 0.5 + 0.03 * rng.standard_normal(seeds)
        a, b = (shared + 0.012 * rng.standard_normal(seeds) for _ in range(2))
        off = b - a
        error = off.std(ddof=1) / math.sqrt(seeds)
        if b.min() < a.min() - 0.005 and 0.1 * error < off.mean() < error:
            return a, b
    raise AssertionError("no placebo found")


def better(seed: int, seeds: int = 20) -> Pairs:
    """Losses of two methods over the same seeds; the second is lower by a margin that only pairing shows."""
    rng = randomness.numpy_generator("better", seed, seeds)
    shared = 0.5 + 0.05 * rng.standard_normal(seeds)
    off = 0.01 * rng.standard_normal(seeds)
    return shared, shared - 0.02 + off - off.mean()


@check("verdict", LESSON, minutes=15)
def check_verdict(answer: Callable[..., Any], seed: int) -> str:
    """`verdict(a, b) -> (word, difference, half)` for losses of methods A and B over the same seeds, in the same order.

    difference is the mean of b - a, half is two standard errors of it; word is "better" when B's loss is lower by more
    than half, "worse" when higher by more than half, otherwise "cannot tell" (always with fewer than two pairs).
    """
    a, b = better(seed)
    word, difference, half = _verdict(answer, a, b)
    _judge_interval(answer, seed, half, a, b)
    if not near(difference, float((b - a).mean()), 1e-6):
        if near(difference, float((a - b).mean()), 1e-6):
            not_yet(
                "direction",
                f"B's loss is lower by {-(b - a).mean():.3g} and you gave {difference:.3g} and {word!r}.",
                expected=f"{(b - a).mean():.3g}",
                seen=f"{difference:.3g}",
                try_next="Subtract A from B.",
            )
        not_yet(
            "another difference",
            expected=f"{(b - a).mean():.4g}",
            seen=f"{difference:.4g}",
            try_next="The mean of b - a.",
        )
    if word == "worse":
        not_yet(
            "direction",
            f"Loss went down by {-(b - a).mean():.3g} and you said worse.",
            expected="better",
            seen=word,
            try_next="Lower loss is better.",
        )
    if word != "better":
        not_yet(
            "never decides",
            f"The interval is {(b - a).mean():.3g} plus or minus {half:.2g}: it does not hold zero.",
            expected="better",
            seen=word,
        )
    c, d = placebo(seed)
    said = _verdict(answer, c, d)[0]
    if said != "cannot tell":
        _judge_placebo(said, c, d)
    if _verdict(answer, b, a)[0] != "worse":
        not_yet(
            "never says worse", expected="worse", seen=_verdict(answer, b, a)[0], smallest="the two methods exchanged"
        )
    one = _verdict(answer, a[:1], a[:1] - 0.2)[0]
    if one != "cannot tell":
        not_yet(
            "one seed gives a verdict",
            "With one pair there is no spread to judge by: cannot tell.",
            expected="cannot tell",
            seen=one,
            smallest="one seed",
            try_next="Ask len(a) first.",
        )
    return "A real difference is found, luck is not, and one seed decides nothing."


def _verdict(answer: Callable[..., Any], a: np.ndarray, b: np.ndarray) -> tuple[str, float, float]:
    got = call(answer, a.copy(), b.copy())
    if not isinstance(got, (tuple, list)) or len(got) != 3 or got[0] not in ("better", "worse", "cannot tell"):
        not_yet(
            "not a verdict",
            expected="('better' or 'worse' or 'cannot tell', difference, half)",
            seen=shown(got),
            try_next="End with: return word, difference, half",
        )
    return str(got[0]), number(got[1], "The difference"), number(got[2], "The half-width")


def _judge_interval(answer: Callable[..., Any], seed: int, half: float, a: np.ndarray, b: np.ndarray) -> None:
    n, off = len(a), b - a
    due = 2 * float(off.std(ddof=1)) / math.sqrt(n)
    unpaired = 2 * math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / n)
    if 0.9 * due < half < 1.15 * due:
        return
    if 0.85 * unpaired < half < 1.15 * unpaired:
        not_yet(
            "not paired",
            f"Interval plus or minus {half:.2g} where pairing gives {due:.2g}: both runs of a seed share order and "
            "initial weights, use it.",
            expected=f"{due:.3g}",
            seen=f"{half:.3g}",
            try_next="Take b - a first, then its spread.",
        )
    five = _verdict(answer, *better(seed, 5))[2]
    if half > 2.5 * due:
        not_yet(
            "standard deviation, not standard error",
            f"Your interval is {five:.2g} for 5 seeds and {half:.2g} for {n}: it does not shrink with more seeds.",
            expected=f"{due:.3g}",
            seen=f"{half:.3g}",
            try_next="Divide by the root of the number of pairs.",
        )
    not_yet(
        "another interval",
        expected=f"two standard errors, {due:.3g}",
        seen=f"{half:.3g}",
        try_next="2 * std(b - a) / sqrt(n)",
    )


def _judge_placebo(said: str, a: np.ndarray, b: np.ndarray) -> None:
    off = b - a
    half = 2 * off.std(ddof=1) / math.sqrt(len(a))
    shown_interval = f"difference {off.mean():.2g} plus or minus {half:.2g}"
    if said == "better":
        not_yet(
            "compares best with best",
            f"On the placebo you said better. The best of {len(a)} seeds ({b.min():.3f} against "
            f"{a.min():.3f}) is luck by construction.",
            expected="cannot tell",
            seen=said,
            smallest=shown_interval,
            try_next="Judge by the interval of the mean, not by the best run.",
        )
    not_yet(
        "ignores the spread",
        "On the placebo the sign of the mean decided.",
        expected="cannot tell",
        seen=said,
        smallest=shown_interval,
        try_next="Decide only when the interval leaves zero out.",
    )
