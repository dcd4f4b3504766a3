"""The opening of lesson 06, and ratios over several seeds: what a policy or a lost piece does to an averaged model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.lab import theme


@dataclass(frozen=True, eq=False)
class StartPlot:
    """updates: counted from 1; raw, averaged: validation accuracy in per cent after each; at: the update asked about.

    guess: a number of per cent, or None.
    """

    updates: np.ndarray
    raw: np.ndarray
    averaged: np.ndarray
    decay: float
    at: int
    guess: float | None = None

    @property
    def seen(self) -> float:
        """Accuracy of the average at the update asked about."""
        return float(self.averaged[self.updates == self.at][0])


def start_sentence(data: StartPlot) -> str:
    """Both scores at the update asked about, and how much of the average is the start."""
    raw = float(data.raw[data.updates == data.at][0])
    return (
        f"After update {data.at} the raw weights are right on {raw:.0f}% of the validation digits, their average on "
        f"{data.seen:.0f}%: {data.decay**data.at:.0%} of it is still the random start."
    )


def start(data: StartPlot) -> theme.Picture:
    """Accuracy of raw and averaged weights along the run; the guess is marked."""
    figure = theme.picture(f"accuracy of raw and averaged weights, decay {data.decay:g}", start_sentence(data), 3.4)
    theme.headline(figure, start_sentence(data))
    axes = theme.panel(figure, (0.085, 0.15, 0.89, 0.67), "Validation accuracy", x="update", y="per cent")
    axes.plot(data.updates, data.raw, label="raw weights", **theme.STRAIGHT.style(len(data.updates)))
    axes.plot(data.updates, data.averaged, label="average", **theme.RESUMED.style(len(data.updates), filled=False))
    axes.axvline(data.at, color=theme.GREY, linewidth=1.2, linestyle=(0, (1, 2)))
    axes.axhline(10, color=theme.GREY, linewidth=1.0, linestyle="--", label="guessing among ten")
    if data.guess is not None:
        axes.plot([data.at], [data.guess], "*", color=theme.PURPLE, markersize=15, label="your guess")
    axes.set_ylim(0, 100)
    axes.set_xlim(0, data.updates[-1])
    theme.legend(axes, loc="lower right", bbox_to_anchor=(1.0, 0.1))
    return figure


@dataclass(frozen=True, eq=False)
class RatioPlot:
    """groups: what was done, in words; ratio: loss in units of `against`, shape (groups, seeds)."""

    title: str
    groups: Sequence[str]
    ratio: np.ndarray
    against: str


def ratios_sentence(data: RatioPlot) -> str:
    """The range over the seeds of each group."""
    said = [f"{name} {row.min():.2f} to {row.max():.2f}" for name, row in zip(data.groups, data.ratio, strict=True)]
    return f"Loss in units of {data.against}, over {data.ratio.shape[1]} seeds: " + "; ".join(said) + "."


def ratios(data: RatioPlot) -> theme.Picture:
    """One row of dots for each group, one dot a seed, on a log axis; the line at 1 is what they are compared with."""
    height = 1.35 + 0.36 * len(data.groups)
    figure = theme.picture(data.title, ratios_sentence(data), height)
    theme.headline(figure, ratios_sentence(data))
    bottom = 0.52 / height
    box = (0.3, bottom, 0.67, 1 - bottom - 0.75 / height)
    axes = theme.panel(figure, box, data.title, x=f"loss / loss of {data.against}")
    axes.set_xscale("log")
    axes.axvline(1.0, color=theme.BLACK, linewidth=1.4, linestyle="--")
    markers = ("o", "s", "^", "D", "v", "P")
    for place, row in enumerate(data.ratio):
        spread = np.linspace(-0.16, 0.16, len(row)) if len(row) > 1 else np.zeros(1)
        axes.plot(row, place + spread, markers[place % 6], color=theme.FILLS[place % 6], markersize=7)
    axes.set_yticks(range(len(data.groups)), data.groups, fontsize=theme.TEXT)
    axes.set_ylim(len(data.groups) - 0.5, -0.5)
    low, high = min(0.7, float(data.ratio.min()) / 1.2), max(1.5, float(data.ratio.max()) * 1.2)
    axes.set_xlim(low, high)
    ticks = [t for t in (0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100) if low <= t <= high]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.grid(visible=True, axis="x", color=theme.PALE, linewidth=0.7)
    return figure
