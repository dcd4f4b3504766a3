"""What losing each part of the optimizer costs, and how often a resumed epoch shows its examples. Lesson 04."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labkit.lab import theme

QUIET = 2.0
"""A loss within this factor of the uninterrupted run's counts as no visible trace."""


@dataclass(frozen=True)
class RankPlot:
    """after: what was lost -> mean probe loss of the updates after the resume (nats); kept: that of the straight run.

    names: letter -> what was lost. guess: letters from harmless to catastrophic, or None.
    """

    names: Mapping[str, str]
    after: Mapping[str, float]
    kept: float
    guess: Sequence[str] | None = None

    @property
    def order(self) -> list[str]:
        """Letters from harmless to catastrophic; those without a visible trace are a tie, told by the alphabet."""
        quiet = sorted(letter for letter, loss in self.after.items() if loss < QUIET * self.kept)
        loud = sorted((letter for letter in self.after if letter not in quiet), key=lambda letter: self.after[letter])
        return [*quiet, *loud]

    @property
    def tied(self) -> int:
        """How many letters at the front are a tie."""
        return sum(loss < QUIET * self.kept for loss in self.after.values())

    @property
    def fair_guess(self) -> list[str] | None:
        """The guess with the tied letters, if they are all in front, in the order in which they are told."""
        if self.guess is None:
            return None
        said = [str(letter).strip().upper() for letter in self.guess]
        front = said[: self.tied]
        return [*self.order[: self.tied], *said[self.tied :]] if sorted(front) == self.order[: self.tied] else said


def rank_sentence(data: RankPlot) -> str:
    """The quiet ones, and how many times the worst one is above the run that was never stopped."""
    quiet = " and ".join(data.names[letter] for letter in data.order[: data.tied]).capitalize()
    worst = data.order[-1]
    times = float(f"{data.after[worst] / data.kept:.1g}")
    return f"{quiet}: no visible trace. {data.names[worst].capitalize()}: the loss is {times:,.0f} times as high."


def rank(data: RankPlot) -> theme.Picture:
    """A bar for each loss on a log axis, from harmless down to catastrophic; the guess stands at the right."""
    figure = theme.picture("five losses ranked", rank_sentence(data), height=3.3)
    theme.headline(figure, rank_sentence(data))
    axes = theme.panel(figure, (0.24, 0.17, 0.6, 0.63), "Mean probe loss of the ten updates after the resume")
    axes.set_xscale("log")
    theme.log_ticks(axes, "x")
    order, places = data.order, np.arange(len(data.order))
    values = np.array([data.after[letter] for letter in order])
    low = min(data.kept, float(values.min())) / 3
    for place, letter, value in zip(places, order, values, strict=True):
        color, hatch = (theme.SKY, "") if place < data.tied else (theme.VERMILION, "///")
        axes.barh(place, value - low, left=low, height=0.6, color=color, hatch=hatch, edgecolor=theme.BLACK, lw=0.7)
        if data.guess is not None and letter in (data.fair_guess or ()):
            said = (data.fair_guess or []).index(letter) + 1
            mark = "as seen" if said == place + 1 else f"you said place {said}"
            axes.annotate(mark, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=theme.TEXT - 1,
                          color=theme.PURPLE)  # fmt: skip
    axes.axvline(data.kept, color=theme.BLUE, linewidth=2, linestyle="--")
    axes.annotate("never stopped", (data.kept, -0.62), fontsize=theme.TEXT - 1, color=theme.BLUE, va="bottom",
                  xytext=(3, 0), textcoords="offset points")  # fmt: skip
    axes.set_yticks(places, [f"{letter}  {data.names[letter]}" for letter in order], fontsize=theme.TEXT)
    axes.set_ylim(len(order) - 0.5, -1.0)
    axes.set_xlim(low, values.max() * 3)
    axes.set_xlabel("nats per image, log axis", fontsize=theme.TEXT)
    axes.grid(visible=False)
    return figure


@dataclass(frozen=True)
class SeenPlot:
    """ways: way of resuming -> how often each example of the epoch was seen by its end (one count per example)."""

    ways: Mapping[str, np.ndarray]
    stop: int


def seen_sentence(data: SeenPlot) -> str:
    """How many examples each way repeats and skips."""
    told = [
        f"{way}: {int((seen > 1).sum())} seen twice, {int((seen == 0).sum())} never" for way, seen in data.ways.items()
    ]
    return f"Stopped after update {data.stop}. " + "; ".join(told) + "."


def seen(data: SeenPlot) -> theme.Picture:
    """A stacked bar for each way: examples never seen, seen once, seen twice."""
    figure = theme.picture(f"examples of the epoch, stopped after {data.stop}", seen_sentence(data), height=2.9)
    theme.headline(figure, seen_sentence(data))
    axes = theme.panel(figure, (0.24, 0.19, 0.74, 0.45), x="examples of the epoch")
    places, left = np.arange(len(data.ways)), np.zeros(len(data.ways))
    kinds = (("once", theme.PALE, ""), ("twice", theme.ORANGE, "///"), ("never", theme.VERMILION, "xxx"))
    for count, (kind, color, hatch) in zip((1, 2, 0), kinds, strict=True):
        width = np.array([float((row == count).sum()) for row in data.ways.values()])
        axes.barh(places, width, left=left, height=0.6, color=color, hatch=hatch, edgecolor=theme.BLACK, lw=0.7,
                  label=f"seen {kind}" if count else "never seen")  # fmt: skip
        for place, size, at in zip(places, width, left, strict=True):
            if size > 60:
                axes.annotate(f"{size:.0f}", (at + size / 2, place), ha="center", va="center", fontsize=theme.TEXT,
                              bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5})  # fmt: skip
        left += width
    axes.set_yticks(places, list(data.ways), fontsize=theme.TEXT)
    axes.set_ylim(len(places) - 0.5, -0.5)
    axes.grid(visible=False)
    theme.legend(axes, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, handlelength=1.6)
    return figure
