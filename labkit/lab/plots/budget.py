"""How often to save: a flat bottom; and a plan beside what was measured. Lesson 08."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from labkit.lab import theme

PARTS = ("data", "forward", "backward", "optimizer", "evaluation", "save")


@dataclass(frozen=True, eq=False)
class BudgetPlot:
    """intervals: in updates, rising; cost: expected time over that of an undisturbed run, less 1; chosen: an interval.

    plan, measured: seconds for each of PARTS that took part. measured_on: whose times these are, in words.
    """

    intervals: np.ndarray
    cost: np.ndarray
    chosen: int
    plan: Mapping[str, float]
    measured: Mapping[str, float]
    measured_on: str = "this machine"

    @property
    def best(self) -> int:
        return int(self.intervals[np.argmin(self.cost)])

    @property
    def flat(self) -> tuple[int, int]:
        """Smallest and largest interval, in one piece around the best, that cost less than one point more."""
        good = self.cost < self.cost.min() + 0.01
        at = low = high = int(np.argmin(self.cost))
        while low > 0 and good[low - 1]:
            low -= 1
        while high < len(good) - 1 and good[high + 1]:
            high += 1
        assert low <= at <= high
        return int(self.intervals[low]), int(self.intervals[high])


def budget_sentence(data: BudgetPlot) -> str:
    """The best interval, how flat the bottom is, what the chosen one costs and risks."""
    low, high = data.flat
    here = float(data.cost[np.argmin(np.abs(data.intervals - data.chosen))])
    return (
        f"Save every {data.best} updates; anywhere from {low} to {high} costs less than one point more. "
        f"Every {data.chosen} costs {here:.1%} over an undisturbed run; at most {data.chosen} updates of work are lost."
    )


def budget(data: BudgetPlot) -> theme.Picture:
    """Expected extra time against the interval, and stacked bars of plan and measurement."""
    figure = theme.picture(f"how often to save: every {data.chosen} updates", budget_sentence(data), height=3.9)
    theme.headline(figure, budget_sentence(data))
    curve = theme.panel(
        figure,
        (0.085, 0.13, 0.5, 0.64),
        "Expected extra time (failures simulated)",
        x="updates between two saves",
        y="per cent",
    )
    bars = theme.panel(figure, (0.68, 0.13, 0.165, 0.64), f"Plan, {data.measured_on}", y="seconds")
    low, high = data.flat
    curve.axvspan(low, high, color=theme.PALE, label="within one point of the best")
    curve.plot(data.intervals, 100 * data.cost, color=theme.BLUE, linewidth=2.2, marker="o", markersize=4)
    at = int(np.argmin(np.abs(data.intervals - data.chosen)))
    curve.plot(
        data.intervals[at],
        100 * data.cost[at],
        "s",
        color=theme.VERMILION,
        markersize=11,
        markerfacecolor="none",
        markeredgewidth=2,
        label="your interval",
    )
    curve.set_xscale("log")
    theme.log_ticks(curve, "x")
    curve.set_ylim(0, min(100 * float(data.cost.max()), 1200 * float(data.cost.min())) * 1.05)
    theme.legend(curve, loc="upper center")
    shown = [part for part in PARTS if data.plan.get(part, 0) or data.measured.get(part, 0)]
    bottom = np.zeros(2)
    for n, part in enumerate(shown):
        height = np.array([data.plan.get(part, 0.0), data.measured.get(part, 0.0)])
        bars.bar(
            [0, 1],
            height,
            bottom=bottom,
            width=0.7,
            color=theme.FILLS[n % 6],
            hatch=theme.HATCHES[n % 6],
            edgecolor=theme.BLACK,
            linewidth=0.7,
            label=part,
        )
        bottom += height
    bars.set_xticks([0, 1], ["plan", "measured"], fontsize=theme.TEXT)
    bars.grid(visible=False)
    handles, labels = bars.get_legend_handles_labels()
    bars.legend(
        handles[::-1],
        labels[::-1],
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        fontsize=theme.TEXT - 1,
        frameon=False,
        handlelength=1.4,
    )
    return figure
