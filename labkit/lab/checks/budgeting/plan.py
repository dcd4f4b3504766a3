"""Check of lesson 08: a plan before the run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labkit import randomness
from labkit.lab.checks.frame import call, check, near, not_yet, number, shown

LESSON = "08_budgeting"


@dataclass(frozen=True)
class Case:
    """What is known before the run. evaluation and saving are (every how many updates, seconds each)."""

    examples: int
    epochs: int
    batch: int
    times: list[float]
    evaluation: tuple[int, float]
    saving: tuple[int, float]
    price: float
    devices: int

    @property
    def updates(self) -> int:
        return math.ceil(self.examples / self.batch) * self.epochs

    def hours(self, updates: int, second: float, extras: bool = True) -> float:
        """Hours of a run of so many updates of `second` seconds each."""
        parts = [(updates // every) * cost for every, cost in (self.evaluation, self.saving)] if extras else []
        return (updates * second + sum(parts)) / 3600

    @property
    def second(self) -> float:
        """A typical update: the first one is left out, it warms things up."""
        return sum(self.times[1:]) / (len(self.times) - 1)


def case(seed: int) -> Case:
    """The lesson's data set, or a hidden one of another size."""
    rng = randomness.numpy_generator("check plan", seed)
    examples, batch = (1257, 64) if seed == 0 else (64 * int(rng.integers(20, 40)) + int(rng.integers(8, 30)), 64)
    usual = 0.6 if seed == 0 else 0.3 + 0.1 * int(rng.integers(1, 6))
    return Case(examples, 10, batch, [7 * usual, *[usual] * 4], (20, 2 * usual), (10, 3 * usual), 2.5, 4)


@check("plan", LESSON, minutes=15)
def check_plan(answer: Callable[..., Any], seed: int) -> str:
    """`plan(examples, epochs, batch, times, evaluation, saving, price, devices) -> (updates, hours, cost)`.

    Each epoch ends with its own, perhaps short, batch. times: measured seconds of the first few updates, the very first
    included. evaluation, saving: (every how many updates, seconds each). price: of one device for one hour. hours are
    those on the clock, cost is for all devices.
    """
    c = case(seed)
    got = call(answer, c.examples, c.epochs, c.batch, list(c.times), c.evaluation, c.saving, c.price, c.devices)
    if not isinstance(got, (tuple, list)) or len(got) != 3:
        not_yet(
            "not three numbers",
            expected="(updates, hours, cost)",
            seen=shown(got),
            try_next="End with: return updates, hours, cost",
        )
    updates, hours, cost = (number(v, name) for v, name in zip(got, ("updates", "hours", "cost"), strict=True))
    _judge_updates(c, updates)
    _judge_hours(c, hours)
    due = c.hours(c.updates, c.second) * c.devices * c.price
    if not near(cost, due, 1e-3):
        _judge_cost(c, cost, due)
    return f"{c.updates} updates, short batches, evaluations and saves included, and every device paid for."


def _judge_updates(c: Case, updates: float) -> None:
    if updates == c.updates:
        return
    full, rest = divmod(c.examples, c.batch)
    stream = c.examples * c.epochs / c.batch
    if updates == full * c.epochs:
        not_yet(
            "drops the short batch",
            f"{full * c.epochs}: {rest * c.epochs} examples are never trained.",
            expected=str(c.updates),
            seen=f"{updates:g}",
            smallest=f"{c.examples} examples in batches of {c.batch}",
            try_next="Round up, within each epoch.",
        )
    if abs(updates - stream) < 1:
        not_yet(
            "one division for all epochs",
            f"{stream:.1f}; each epoch ends in a short batch of {rest}: {full + 1} x {c.epochs}.",
            expected=str(c.updates),
            seen=f"{updates:g}",
            smallest=f"{c.examples} examples, {c.epochs} epochs, batches of {c.batch}",
            try_next="Batches per epoch first, rounded up, then times the epochs.",
        )
    not_yet(
        "another count",
        expected=str(c.updates),
        seen=f"{updates:g}",
        smallest=f"{c.examples} examples in batches of {c.batch}",
    )


def _judge_hours(c: Case, hours: float) -> None:
    due, n = c.hours(c.updates, c.second), c.updates
    if near(hours, due, 1e-3):
        return
    mean = sum(c.times) / len(c.times)
    if near(hours, due * 3600, 1e-3) or near(hours, due * 60, 1e-3):
        not_yet(
            "seconds as hours",
            f"{hours:.4g} hours for a run of {due * 60:.3g} minutes?",
            expected=f"{due:.4g}",
            seen=f"{hours:.4g}",
            try_next="Divide seconds by 3600.",
        )
    for second, what in ((mean, "mean"), (c.times[0], "first")):
        if any(near(hours, c.hours(n, second, extras), 1e-3) for extras in (True, False)):
            not_yet(
                "warm-up included",
                f"Forecast {c.hours(n, second) * 3600:.4g} s, measured {due * 3600:.4g} s: your sample holds the "
                f"first update, {c.times[0] / c.second:.3g} times slower.",
                expected=f"{due:.4g} hours",
                seen=f"{hours:.4g}",
                smallest=f"the {what} of {len(c.times)} measured updates",
                try_next="Leave the first one out.",
            )
    if near(hours, c.hours(n, c.second, extras=False), 1e-3):
        not_yet(
            "forgets evaluation and saves",
            f"Training alone is {c.hours(n, c.second, False) / due:.0%} of the run.",
            expected=f"{due:.4g} hours",
            seen=f"{hours:.4g}",
            try_next="Add (updates // every) * seconds for both.",
        )
    if near(hours, due * c.devices, 1e-3) or near(hours, due / c.devices, 1e-3):
        not_yet(
            "device hours on the clock",
            f"{c.devices} devices work at the same time: the clock shows {due:.4g} hours.",
            expected=f"{due:.4g}",
            seen=f"{hours:.4g}",
            try_next="Devices count in the cost only.",
        )
    not_yet(
        "other hours",
        expected=f"{due:.4g}",
        seen=f"{hours:.4g}",
        try_next="Write the three parts down in seconds first.",
    )


def _judge_cost(c: Case, cost: float, due: float) -> None:
    if near(cost, due / c.devices, 1e-3):
        hours = c.hours(c.updates, c.second)
        not_yet(
            "forgets the devices",
            f"{c.devices} devices for {hours:.3g} hours are {c.devices * hours:.3g} device hours.",
            expected=f"{due:.4g}",
            seen=f"{cost:.4g}",
            try_next="hours * devices * price",
        )
    if near(cost, due * 3600, 1e-3) or near(cost, due * 60, 1e-3):
        minutes = c.hours(c.updates, c.second) * 60
        not_yet(
            "seconds as hours",
            f"{cost:,.0f} for {minutes:.0f} minutes?",
            expected=f"{due:.4g}",
            seen=f"{cost:.4g}",
            try_next="The price is for an hour.",
        )
    not_yet("another cost", expected=f"{due:.4g}", seen=f"{cost:.4g}", try_next="hours * devices * price")
