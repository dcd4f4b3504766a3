"""How often to save: what a save costs against the work that a failure repeats. Lesson 08.

Young 1974, "A first order approximation to the optimum checkpoint interval", CACM 17(9); Daly 2006, Future Generation
Computer Systems 22(3), gives the higher orders, which matter only when a save is no longer short against a failure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from labkit.errors import PlanError
from labkit.plan.arithmetic import check_numbers
from labkit.plan.words import duration

FLAT = 0.01
"""The flat bottom: intervals whose expected overhead is at most this share of the run's time above the least."""


@dataclass(frozen=True)
class Interval:
    """How often to save. overhead is the expected share of time that goes to saves and to work done twice."""

    updates: int
    seconds: float
    flat_from: int  # updates; anything from here ...
    flat_to: int  # ... to here costs at most FLAT more
    overhead: float
    limited_by: str  # "the formula", "the tolerated loss", "the length of the run", "one update"

    def __str__(self) -> str:
        if self.limited_by == "the length of the run":
            return "save at the end only: the run is too short for a save in between to pay"
        text = f"save every {_updates(self.updates)}"
        if self.limited_by == "the tolerated loss":
            return f"{text}, which is as much as may be lost"
        if self.limited_by == "one update":
            return f"{text}: an update already takes longer than the best interval or the tolerated loss"
        if self.flat_from == self.flat_to:
            return text
        return f"{text} (anything from {self.flat_from} to {self.flat_to} is nearly as good)"


def save_interval(
    save_seconds: float, failures_mean_seconds: float, update_seconds: float, run_updates: int,
    tolerate_seconds: float | None = None,
) -> Interval:  # fmt: skip
    """Young's interval sqrt(2 x save cost x mean time between failures), in whole updates, rounded down.

    Shorter if the tolerated loss asks for it, never longer than the run, never less than one update.
    failures_mean_seconds may be infinite: then only the tolerated loss counts. Expected overhead of an interval t, to
    first order: save / t + t / (2 x mean), flat around its minimum.
    Raises PlanError for negative numbers, an update of no time, and failures that come faster than saves are made.
    """
    check_numbers(save_seconds=save_seconds, update_seconds=update_seconds, tolerate_seconds=tolerate_seconds)
    if not update_seconds > 0:
        raise PlanError(f"update_seconds={update_seconds}", "more than 0", "measure an update first")
    if not failures_mean_seconds > 2 * save_seconds:
        raise PlanError(
            f"a failure every {duration(failures_mean_seconds)} and a save that takes {duration(save_seconds)}",
            "failures rarer than twice a save's time", "no interval helps: make saves cheaper, or failures rarer",
        )  # fmt: skip
    best = math.sqrt(2 * save_seconds * failures_mean_seconds)
    seconds, limited = best, "the formula"
    if tolerate_seconds is not None and tolerate_seconds < seconds:
        seconds, limited = tolerate_seconds, "the tolerated loss"
    if run_updates * update_seconds <= seconds:
        seconds, limited = run_updates * update_seconds, "the length of the run"
    updates = math.floor(seconds / update_seconds + 1e-9)
    if updates < 1:
        updates, limited = 1, "one update"
    chosen = updates * update_seconds
    overhead = save_seconds / chosen + chosen / (2 * failures_mean_seconds)
    flat_from, flat_to = _flat(save_seconds, failures_mean_seconds, update_seconds)
    if limited == "the tolerated loss":
        flat_to = updates
    return Interval(
        updates, chosen, min(updates, flat_from), max(updates, min(flat_to, run_updates)), overhead, limited
    )  # fmt: skip


def _flat(save: float, mean: float, update: float) -> tuple[int, int]:
    """Updates at which save / t + t / (2 mean) is FLAT above its minimum: t^2 - 2 mean level t + 2 mean save = 0."""
    if math.isinf(mean):
        return math.ceil(save / FLAT / update), 10**18
    middle = mean * (math.sqrt(2 * save / mean) + FLAT)
    root = math.sqrt(max(0.0, middle * middle - 2 * mean * save))
    return max(1, math.ceil((middle - root) / update - 1e-9)), math.floor((middle + root) / update + 1e-9)


def _updates(count: int) -> str:
    return "update" if count == 1 else f"{count} updates"
