"""A committed guess, shown beside what happened. All lessons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def guess(mine: Any, seen: Any, options: Mapping[Any, str] | None = None, within: float = 0.0, unit: str = "") -> None:
    """Print the guess beside the result. Nothing is graded; None means no guess, and reads the same everywhere.

    mine, seen: a number, a letter, a word, or a list of those. options: what each letter stands for.
    within: how far off a number may be and still count as right, as a part of `seen` (0.5: half as much again).
    """
    print(f"Seen:        {_words(seen, options, unit)}")
    if mine is None or mine is ...:
        print("Your guess:  none. Write one into my_guess above, run both cells, and this line will hold it.")
        return
    verdict = "as seen" if agrees(mine, seen, within) else "not what happened"
    print(f"Your guess:  {_words(mine, options, unit)}  ({verdict})")


def agrees(mine: Any, seen: Any, within: float = 0.0) -> bool:
    """Whether the guess counts as right: numbers within a part of `seen`, words whatever their case, lists by entry."""
    if isinstance(mine, (list, tuple)) and isinstance(seen, (list, tuple)):
        return len(mine) == len(seen) and all(agrees(a, b, within) for a, b in zip(mine, seen, strict=True))
    if isinstance(mine, (int, float)) and isinstance(seen, (int, float)):
        return abs(mine - seen) <= within * abs(seen)
    return str(mine).strip().casefold() == str(seen).strip().casefold()


def _words(value: Any, options: Mapping[Any, str] | None, unit: str) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(_words(one, options, unit) for one in value)
    if options is not None and value in options:
        return f"{value} ({options[value]})"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{text} {unit}".rstrip()
