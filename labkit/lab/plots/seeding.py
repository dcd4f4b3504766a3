"""A look that changes training, how far runs drift apart, and luck over seeds. Lesson 02."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labkit.lab import theme

# ------------------------------------------------------------------------------------------ the look


@dataclass(frozen=True, eq=False)
class LookPlot:
    """plain, looked: training loss of each update without and with looks; looks: after which updates; guess: if any."""

    plain: np.ndarray
    looked: np.ndarray
    looks: Sequence[int]
    guess: int | None = None

    @property
    def equal(self) -> np.ndarray:
        """Bool for each update: the loss is the same in every bit."""
        return np.asarray(self.plain) == np.asarray(self.looked)

    @property
    def first(self) -> int | None:
        """The first update that differs, from 1; None: none does."""
        return None if self.equal.all() else 1 + int(np.argmin(self.equal))


def look_sentence(data: LookPlot) -> str:
    """From which update on the two runs differ."""
    if data.first is None:
        return f"All {len(data.plain)} updates have the same loss in every bit: looking left no trace."
    return (
        f"Updates 1 to {data.first - 1} have the same loss in every bit; update {data.first} is the first that differs."
    )


def look(data: LookPlot) -> theme.Picture:
    """Difference of the losses above, a square for each update below: filled = equal."""
    figure = theme.picture("training with and without a look at the validation set", look_sentence(data), height=3.6)
    theme.headline(figure, look_sentence(data))
    updates = np.arange(1, len(data.plain) + 1)
    curve = theme.panel(figure, (0.1, 0.36, 0.88, 0.46), "Loss with looks minus loss without", y="nats")
    curve.axhline(0, color=theme.GREY, linewidth=1)
    curve.plot(
        updates,
        np.asarray(data.looked) - np.asarray(data.plain),
        **theme.RESUMED.style(len(updates)),
        label="difference",
    )
    strip = theme.panel(figure, (0.1, 0.15, 0.88, 0.08), x="update (filled square: equal in every bit)")
    for mask, face in ((data.equal, theme.BLACK), (~data.equal, "white")):
        strip.scatter(
            updates[mask],
            np.zeros(mask.sum()),
            s=70,
            marker="s",
            facecolors=face,
            edgecolors=theme.BLACK,
            linewidths=0.8,
        )
    strip.set_yticks([])
    strip.grid(visible=False)
    for axes in (curve, strip):
        axes.set_xlim(0, len(updates) + 1)
        for number, at in enumerate(data.looks):
            label = "a look at the validation set" if number == 0 and axes is curve else None
            axes.axvline(at + 0.5, color=theme.BLUE, linestyle="--", linewidth=1.4, label=label)
        if data.guess is not None:
            label = "your guess" if axes is curve else None
            axes.axvline(data.guess, color=theme.PURPLE, linestyle=":", linewidth=2.2, label=label)
    theme.legend(curve, loc="lower left")
    return figure


# ------------------------------------------------------------------------------------------ how far apart


@dataclass(frozen=True, eq=False)
class ApartPlot:
    """apart: what was changed -> distance between the parameters of the two runs after each update (0: equal bits)."""

    apart: Mapping[str, np.ndarray]


def apart_sentence(data: ApartPlot) -> str:
    """The distance at the end, in the order given, as powers of ten."""
    parts = []
    for name, distance in data.apart.items():
        last = float(distance[-1])
        parts.append(f"{name}, equal bits" if last == 0 else f"{name}, about {_rough(last)}")
    length = len(next(iter(data.apart.values())))
    return f"How far apart the parameters are after {length} updates: " + "; ".join(parts) + "."


def _rough(value: float) -> str:
    return f"{value:.1g}" if value < 1 else f"{value:.2g}"


def apart(data: ApartPlot) -> theme.Picture:
    """One line for each change, on a log axis with a floor for equal bits."""
    figure = theme.picture("how far apart two runs end", apart_sentence(data), height=4.2)
    theme.headline(figure, apart_sentence(data))
    title = "Two runs that differ in one thing only"
    axes = theme.panel(figure, (0.1, 0.13, 0.88, 0.66), title, x="update", y="distance of the parameters", log=True)
    positive = np.concatenate([d[d > 0] for d in data.apart.values()])
    floor = float(positive.min()) / 30
    for (name, distance), line in zip(data.apart.items(), theme.LINES, strict=False):
        updates = np.arange(1, len(distance) + 1)
        axes.plot(updates, np.where(distance > 0, distance, floor), label=name, **line.style(len(distance)))
    axes.axhline(floor, color=theme.GREY, linewidth=0.8)
    axes.annotate("equal bits", (0.995, floor), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    axes.set_ylim(floor / 3, float(positive.max()) * 3000)
    theme.legend(axes, loc="upper left", ncols=2)
    return figure


# ------------------------------------------------------------------------------------------ luck over seeds


@dataclass(frozen=True, eq=False)
class LuckPlot:
    """gains: method -> gain of each seed in points of accuracy (positive: better); half: half of the 95% interval."""

    gains: Mapping[str, np.ndarray]
    half: Mapping[str, float]


def luck_sentence(data: LuckPlot) -> str:
    """The luckiest seed of each method, and its mean with the interval."""
    parts = [
        f"{name}: luckiest seed {max(gain):+.1f} points, mean {np.mean(gain):+.1f} plus or minus {data.half[name]:.1f}"
        for name, gain in data.gains.items()
    ]
    return "; ".join(parts) + "."


def luck(data: LuckPlot) -> theme.Picture:
    """A dot for each seed, a bar for the interval of the mean."""
    figure = theme.picture("luck and a real gain, seed by seed", luck_sentence(data), height=2.9)
    theme.headline(figure, luck_sentence(data))
    axes = theme.panel(figure, (0.17, 0.18, 0.8, 0.56), "Gain over method A on the same seed", x="points of accuracy")
    axes.axvline(0, color=theme.GREY, linewidth=1)
    for place, (name, gain) in enumerate(data.gains.items()):
        height, mean = -place, float(np.mean(gain))
        stacked = [
            height + 0.12 + 0.11 * int((np.round(gain[:n], 6) == round(float(gain[n]), 6)).sum())
            for n in range(len(gain))
        ]
        axes.scatter(gain, stacked, s=34, marker="o", facecolors="white", edgecolors=theme.BLUE)
        axes.errorbar(
            mean, height - 0.14, xerr=data.half[name], fmt="s", color=theme.VERMILION, capsize=5, linewidth=2.2
        )
    axes.set_yticks([-n for n in range(len(data.gains))], list(data.gains), fontsize=theme.TEXT)
    axes.set_ylim(-len(data.gains) + 0.6, 0.75)
    axes.grid(visible=False)
    axes.annotate(
        "circle: one seed; square with bar: mean, 95% interval", (0.99, 1.04), xycoords="axes fraction", ha="right",
        fontsize=theme.TEXT - 1,
    )  # fmt: skip
    return figure
