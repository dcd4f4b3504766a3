"""Check of lesson 00: the detector, written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from labkit import randomness
from labkit.lab.checks.frame import call, check, not_yet, number, shown

LESSON = "00_start_here"


@check("first_difference", LESSON, minutes=5)
def check_first_difference(answer: Callable[..., Any], seed: int) -> str:
    """`first_difference(left, right, first) -> int or None`.

    left, right: losses of two runs, equally long lists, one loss an update; first: the number of the first update in
    them. Returns the number of the first update whose two losses are not equal in every bit, None when there is none.
    """
    rng = randomness.numpy_generator("check first difference", seed)
    first = int(rng.integers(40, 90))
    losses = [float(value) for value in rng.uniform(0.1, 2.0, 6)]
    _never(answer, losses, first)
    for place in (int(rng.integers(1, 5)), 0):
        _plain(answer, losses, place, first)
    _quiet(answer, losses, int(rng.integers(1, 4)), first)
    return "It finds one last bit that differs, at the right update, and says None when nothing does."


def _never(answer: Callable[..., Any], losses: list[float], first: int) -> None:
    seen = call(answer, list(losses), list(losses), first)
    if seen is not None:
        not_yet(
            "equal runs",
            "The two runs are equal in every bit, so there is no first update that differs.",
            expected="None",
            seen=shown(seen),
            smallest=f"the same {len(losses)} losses twice, first={first}",
            try_next="Return None after the loop, when no pair was different.",
        )


def _plain(answer: Callable[..., Any], losses: list[float], place: int, first: int) -> None:
    other = [value * (1.5 if n >= place else 1.0) for n, value in enumerate(losses)]
    seen, due = call(answer, list(losses), other, first), first + place
    if seen is None:
        not_yet(
            "difference not found",
            f"From update {due} on every loss is half as large again.",
            expected=str(due),
            seen="None",
            smallest=f"{len(losses)} losses, first={first}, different from entry {place} on",
            try_next="Return the number as soon as a pair is not equal.",
        )
    value = number(seen, "The answer")
    if value == place or value == place + 1:
        not_yet(
            "counts the list",
            f"This is a place in the list; its update has the number {due}.",
            expected=str(due),
            seen=shown(seen),
            smallest=f"first={first}, different from entry {place} on",
            try_next="The entry at place 0 is update `first`; what is the entry at place n?",
        )
    if value == first + len(losses) - 1:
        not_yet(
            "last in place of first",
            "Every later update differs as well; the first one is asked for.",
            expected=str(due),
            seen=shown(seen),
            smallest=f"first={first}, different from entry {place} on",
            try_next="Leave the loop at the first pair that differs.",
        )
    if value != due:
        not_yet(
            "another update",
            expected=str(due),
            seen=shown(seen),
            smallest=f"first={first}, different from entry {place} on",
        )


def _quiet(answer: Callable[..., Any], losses: list[float], place: int, first: int) -> None:
    """Two losses that print alike in six digits, and differ."""
    other = list(losses)
    other[place] = math.nextafter(losses[place], math.inf)
    other[-1] += 0.25
    seen, due = call(answer, list(losses), other, first), first + place
    if seen != due:
        not_yet(
            "close counts as equal",
            f"Update {due} differs by {other[place] - losses[place]:.0e}, in the last bit, and you passed it over. "
            "A tolerance hides how a difference begins.",
            expected=str(due),
            seen=shown(seen),
            smallest=f"the losses {losses[place]!r} and {other[place]!r}",
            try_next="Compare with != alone.",
        )
