"""Check of lesson 08: how often to save."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from labkit.lab.checks.frame import call, check, near, not_yet, number

LESSON = "08_budgeting"


def extra(interval: float, save: float, mean: float) -> float:
    """Expected extra time as a part of the run, to first order: saving, and half an interval lost at each failure."""
    return save / interval + interval / (2 * mean)


@check("interval", LESSON, minutes=10)
def check_interval(answer: Callable[..., Any], seed: int) -> str:
    """`interval(save_s, failures_mean_s, tolerated_s, update_s, updates) -> int`: save every so many updates.

    The square root of 2 * save * mean time between failures (Young 1974), in whole updates, at least 1, losing at most
    tolerated_s of work, and never longer than the run of `updates` updates.
    """
    save, mean, update = 5.0 * (1 + seed % 4), 1_000.0 * (1 + seed % 4), 0.7
    due = math.sqrt(2 * save * mean) / update
    got = number(call(answer, save, mean, 1e9, update, 10**9), "The interval")
    case = f"save {save:g} s, a failure every {mean:g} s, update {update:g} s"
    if abs(got - due) > 1:
        _judge_formula(got, due, save, mean, update, case)
    if got != int(got):
        not_yet("not whole", expected=str(int(due)), seen=f"{got:.4g}", smallest=case, try_next="int(...)")
    _judge_edges(answer, due, update, save, mean)
    return "The root, in updates, bounded by what may be lost, by one update, and by the run."


def _judge_formula(got: float, due: float, save: float, mean: float, update: float, case: str) -> None:
    if abs(got - due / math.sqrt(2)) <= 1:
        worse = extra(got * update, save, mean) - extra(due * update, save, mean)
        not_yet(
            "no factor two under the root",
            f"{got:.0f} where {due:.0f} was due; it costs little here ({worse:.2%} of the run), but "
            "it is another formula.",
            expected=f"{due:.0f}",
            seen=f"{got:.0f}",
            smallest=case,
            try_next="Half an interval is lost on average: that is where the 2 comes from.",
        )
    if abs(got - due * update) <= 1:
        not_yet(
            "seconds for updates",
            f"You return {got:.0f}, the right number of seconds; at {update:g} s an update that saves every "
            f"{got * update:.3g} s.",
            expected=f"{due:.0f}",
            seen=f"{got:.0f}",
            smallest=case,
            try_next="Divide by update_s.",
        )
    not_yet(
        "another formula",
        expected=f"{due:.0f}",
        seen=f"{got:.4g}",
        smallest=case,
        try_next="sqrt(2 * save_s * failures_mean_s) / update_s",
    )


def _judge_edges(answer: Callable[..., Any], due: float, update: float, save: float, mean: float) -> None:
    tolerated = 60.0
    got = number(call(answer, save, mean, tolerated, update, 10**9), "The interval")
    if got * update > tolerated:
        not_yet(
            "tolerance ignored",
            f"Allowed loss is {tolerated:g} s, your interval loses up to {got * update:.3g} s. The smaller of the "
            "two wins.",
            expected=f"at most {tolerated / update:.0f}",
            seen=f"{got:.0f}",
            smallest=f"tolerated {tolerated:g} s",
            try_next="min(..., tolerated_s / update_s)",
        )
    if not near(got, tolerated // update):
        not_yet(
            "another bound",
            expected=f"{tolerated // update:.0f}",
            seen=f"{got:.0f}",
            smallest=f"tolerated {tolerated:g} s",
        )
    got = number(call(answer, 0.001, 1.0, 1e9, 10.0, 10**9), "The interval")
    if got < 1:
        not_yet(
            "rounds to 0",
            f"Saving every {got:.0f} updates.",
            expected="1",
            seen=f"{got:.0f}",
            smallest="an update longer than the interval",
            try_next="max(1, ...)",
        )
    short = max(2, int(due / 2))
    got = number(call(answer, save, mean, 1e9, update, short), "The interval")
    if got > short:
        not_yet(
            "longer than the run",
            f"The run has {short} updates; you would save after {got:.0f}.",
            expected=f"at most {short}",
            seen=f"{got:.0f}",
            smallest=f"a run of {short} updates",
            try_next="min(..., updates)",
        )
