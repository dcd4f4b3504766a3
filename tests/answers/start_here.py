"""Answers to the exercise of lesson 00."""

from __future__ import annotations

import math


def first_difference(left, right, first):
    for n, (a, b) in enumerate(zip(left, right, strict=True)):
        if a != b:
            return first + n
    return None


def in_the_list(left, right, first):
    found = first_difference(left, right, 0)
    return found


def counted_from_one(left, right, first):
    return first_difference(left, right, 1)


def last_difference(left, right, first):
    found = [first + n for n, (a, b) in enumerate(zip(left, right, strict=True)) if a != b]
    return found[-1] if found else None


def tolerant(left, right, first):
    for n, (a, b) in enumerate(zip(left, right, strict=True)):
        if not math.isclose(a, b, rel_tol=1e-9):
            return first + n
    return None


def printed(left, right, first):
    return first_difference([f"{a:.4f}" for a in left], [f"{b:.4f}" for b in right], first)


def zero_for_never(left, right, first):
    return first_difference(left, right, first) or 0


def never(left, right, first):
    return None if left is right or len(left) > 0 else 0


RIGHT = {"first_difference": first_difference}
WRONG = {
    "first_difference": {
        "equal runs": zero_for_never,
        "difference not found": never,
        "counts the list": in_the_list,
        "last in place of first": last_difference,
        "close counts as equal": tolerant,
        "another update": lambda left, right, first: (found := first_difference(left, right, first)) and found - 30,
    },
}
MORE = {"counts the list": counted_from_one, "close counts as equal": printed}
