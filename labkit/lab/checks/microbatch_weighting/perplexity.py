"""Check of lesson 03: one score from uneven batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from labkit import randomness
from labkit.lab.checks.frame import call, check, near, not_yet, number

LESSON = "03_microbatch_weighting"
Batches = list[tuple[float, int, int]]


def batches(seed: int) -> Batches:
    """(summed loss, letters, names) of a batch of 8 and a short last one of 5."""
    rng = randomness.numpy_generator("check perplexity", seed)
    first, second = 40 + int(rng.integers(20)), 18 + int(rng.integers(12))
    return [((1.9 + 0.2 * rng.random()) * first, first, 8), ((2.9 + 0.2 * rng.random()) * second, second, 5)]


@check("perplexity", LESSON, minutes=10)
def check_perplexity(answer: Callable[..., Any], seed: int) -> str:
    """`perplexity(batches) -> float`: batches are (summed loss in nats, letters, names); the unit is the letter.

    The answer must not depend on how the set was cut into batches.
    """
    cut = batches(seed)
    sums, letters, names = (sum(column) for column in zip(*cut, strict=True))
    got = number(call(answer, list(cut)), "The perplexity")
    due = math.exp(sums / letters)
    if not near(got, due):
        _judge(got, due, cut, names)
    whole = number(call(answer, [(sums, letters, names)]), "The perplexity")
    three = number(call(answer, [*cut, (0.0, 0, 0)]), "The perplexity")
    for value, where in ((whole, "the same set in one batch"), (three, "the same set and an empty batch")):
        if not near(value, due):
            not_yet("depends on the cut", expected=f"{due:.4g}", seen=f"{value:.4g}", smallest=where)
    return f"Cut as 8+5 or as 13: {due:.4g} both times."


def _judge(got: float, due: float, cut: Batches, names: int) -> None:
    sums, letters = sum(b[0] for b in cut), sum(b[1] for b in cut)
    means = [s / c for s, c, _ in cut]
    sizes = [b[2] for b in cut]
    known = {
        "mean of means": (
            math.exp(sum(means) / len(means)),
            f"Cut as 8+5 you say {got:.4g}, cut as {names} you say {due:.4g}.",
        ),
        "mean of perplexities": (sum(map(math.exp, means)) / len(means), f"{got:.4g}: the exponential must come last."),
        "drops the short batch": (math.exp(means[0]), f"{sizes[-1]} names never counted."),
        "per name, not per letter": (math.exp(sums / names), "Your unit is a name; perplexity here is per letter."),
        "weighs by name": (
            math.exp(sum(m * n for m, n in zip(means, sizes, strict=True)) / names),
            f"The means were weighted {sizes[0]} to {sizes[1]}, by names; by letters it is {cut[0][1]} to {cut[1][1]}.",
        ),
        "no exponential": (sums / letters, "This is the mean loss; perplexity is its exponential."),
        "another base": (2 ** (sums / letters), "The losses are in nats: the base is e, not 2."),
    }
    for name, (value, said) in known.items():
        if near(got, value):
            not_yet(
                name,
                said,
                expected=f"{due:.4g}",
                seen=f"{got:.4g}",
                smallest=f"{sizes[0]}+{sizes[1]} names",
                try_next="Add up sums, add up letters, divide once, then the exponential.",
            )
    not_yet(
        "another number",
        expected=f"{due:.4g}",
        seen=f"{got:.4g}",
        smallest=f"{sizes[0]}+{sizes[1]} names",
        try_next="exp(sum of losses / sum of letters)",
    )
