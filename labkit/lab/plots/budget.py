"""How often to save: a flat bottom; and a plan beside what was measured. Lesson 08."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from labkit.lab import theme

PARTS = ("data", "forward", "backward", "optimizer", "evaluation", "save", "other")
COLORS = dict(zip(PARTS, (*theme.FILLS, theme.PALE), strict=True))
HATCHES = dict(zip(PARTS, (*theme.HATCHES, ""), strict=True))


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
    headline(figure, budget_sentence(data))
    curve = theme.panel(
        figure,
        (0.085, 0.13, 0.5, 0.64),
        "Expected extra time (failures simulated)",
        x="updates between saves (shaded: within a point of the best)",
        y="per cent",
    )
    bars = theme.panel(figure, (0.68, 0.13, 0.165, 0.64), "A run of 200 updates", x=data.measured_on, y="seconds")
    low, high = data.flat
    curve.axvspan(low, high, color=theme.PALE)
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
    )
    curve.annotate(
        f"every {data.chosen}", (data.intervals[at], 100 * data.cost[at]), xytext=(0, 12), textcoords="offset points",
        ha="center", fontsize=theme.TEXT, color=theme.VERMILION,
    )  # fmt: skip
    curve.set_xscale("log")
    theme.log_ticks(curve, "x")
    curve.set_ylim(0, min(100 * float(data.cost.max()), 1200 * float(data.cost.min())) * 1.05)
    stacked(bars, (data.plan, data.measured))
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


def headline(figure: theme.Picture, text: str) -> None:
    """As theme.headline, in shorter lines: these sentences are long and full of wide letters."""
    figure.text(0.012, 0.985, theme.wrapped(text, 98), fontsize=theme.TEXT + 0.5, va="top", linespacing=1.25)


def stacked(axes: Axes, bars: Sequence[Mapping[str, float]], across: bool = False) -> None:
    """Bars of PARTS on top of each other: seconds upwards, or per cent of each across."""
    shown = [part for part in PARTS if any(bar.get(part, 0) for bar in bars)]
    places, bottom = np.arange(len(bars)), np.zeros(len(bars))
    whole = np.array([sum(bar.values()) / 100 if across else 1.0 for bar in bars])
    for part in shown:
        height = np.array([bar.get(part, 0.0) for bar in bars]) / whole
        look: dict[str, Any] = {"color": COLORS[part], "hatch": HATCHES[part], "edgecolor": theme.BLACK}
        if across:
            axes.barh(places, height, left=bottom, height=0.72, linewidth=0.7, label=part, **look)
        else:
            axes.bar(places, height, bottom=bottom, width=0.7, linewidth=0.7, label=part, **look)
        bottom += height
