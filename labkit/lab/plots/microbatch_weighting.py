"""What averaging means does: to invented names, to gradient and loss, and what breaks a cut besides. Lesson 03."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labkit.lab import theme
from labkit.lab.plots.vote import VotePlot

# ------------------------------------------------------------------------------------------ lengths of invented names


@dataclass(frozen=True, eq=False)
class LengthsPlot:
    """lengths: whose names -> letters of each name, the real ones first; guess: a mean length, or None."""

    lengths: Mapping[str, np.ndarray]
    guess: float | None = None


def lengths_sentence(data: LengthsPlot) -> str:
    """The mean length of each."""
    parts = [f"{name} {np.mean(letters):.1f}" for name, letters in data.lengths.items()]
    return "Mean length in letters: " + ", ".join(parts) + "."


def lengths(data: LengthsPlot) -> theme.Picture:
    """Share of names by length; one line each, the means as dashed lines."""
    figure = theme.picture("how long the invented names are", lengths_sentence(data), height=3.4)
    theme.headline(figure, lengths_sentence(data))
    axes = theme.panel(figure, (0.09, 0.16, 0.88, 0.62), "Names by length", x="letters", y="per cent of names")
    longest = 13
    for (name, letters), line in zip(data.lengths.items(), theme.LINES, strict=False):
        share = np.bincount(np.minimum(letters, longest), minlength=longest + 1) / len(letters)
        axes.plot(np.arange(longest + 1), 100 * share, label=name, **line.style(12))
    top = axes.get_ylim()[1]
    for (_, letters), line in zip(data.lengths.items(), theme.LINES, strict=False):
        axes.plot([np.mean(letters)] * 2, [0, 0.12 * top], color=line.color, linewidth=3)
    if data.guess is not None:
        axes.axvline(data.guess, color=theme.BLACK, linestyle=":", linewidth=2.2, label="your guess")
    axes.set_xlim(0, longest + 0.3)
    axes.set_xticks(range(0, longest + 1))
    axes.set_ylim(0, None)
    axes.annotate(
        "thick ticks at the bottom: means", (0.99, 1.04), xycoords="axes fraction", ha="right", fontsize=theme.TEXT - 1
    )
    theme.legend(axes, loc="upper right")
    return figure


# ------------------------------------------------------------------------------------------ gradient and loss, by cut


@dataclass(frozen=True)
class CutsPlot:
    """cut -> how far the averaged means are off, in parts of the right value: of the gradient, of the reported loss."""

    gradient: Mapping[str, float]
    loss: Mapping[str, float]


def cuts_sentence(data: CutsPlot) -> str:
    """Of the cuts whose gradient is off by more than a tenth, the one whose reported loss tells least."""
    wrong = [name for name, error in data.gradient.items() if error > 0.1]
    if not wrong:
        return "No gradient is off by more than a tenth."
    name = min(wrong, key=lambda n: data.loss[n])
    return (
        f"Best hidden: {name}. Its gradient is off by {data.gradient[name]:.0%}, the reported loss by "
        f"{data.loss[name]:.1%}."
    )


def cuts(data: CutsPlot) -> theme.Picture:
    """Two bars for each cut, on a log axis."""
    figure = theme.picture("error of gradient and of reported loss by cut", cuts_sentence(data), height=3.4)
    theme.headline(figure, cuts_sentence(data))
    axes = theme.panel(
        figure, (0.22, 0.16, 0.74, 0.64), "Averaging means: how far off", x="error in per cent (log axis)"
    )
    places = -np.arange(len(data.gradient), dtype=float)
    for shift, values, color, hatch, label in (
        (0.19, data.gradient, theme.VERMILION, "///", "gradient"),
        (-0.19, data.loss, theme.SKY, "", "reported loss"),
    ):
        size = 100 * np.array(list(values.values()))
        axes.barh(
            places + shift,
            size,
            height=0.36,
            color=color,
            hatch=hatch,
            edgecolor=theme.BLACK,
            linewidth=0.6,
            label=label,
        )
        for place, value in zip(places, size, strict=True):
            axes.annotate(f" {_per_cent(value)}", (value, place + shift), va="center", fontsize=theme.TEXT - 1)
    axes.set_xscale("log")
    theme.log_ticks(axes, "x")
    every = 100 * np.array([*data.gradient.values(), *data.loss.values()])
    axes.set_xlim(float(every.min()) / 2, float(every.max()) * 4)
    axes.set_yticks(places, list(data.gradient), fontsize=theme.TEXT)
    axes.grid(axis="y", visible=False)
    theme.legend(axes, loc="lower right")
    return figure


def _per_cent(value: float) -> str:
    return f"{value:.0f}%" if value >= 10 else f"{value:.2g}%"


# ------------------------------------------------------------------------------------------ what breaks a cut


@dataclass(frozen=True)
class BreaksPlot:
    """off: what the network or loop does -> relative difference of the gradient between one piece and several;
    tolerance: below it, a difference is rounding."""

    off: Mapping[str, float]
    tolerance: float


def breaks_sentence(data: BreaksPlot) -> str:
    """How many hold to rounding, and which do not."""
    broken = [name for name, off in data.off.items() if off > data.tolerance]
    whole = len(data.off) - len(broken)
    return f"{whole} of {len(data.off)} agree to rounding; broken by: {', '.join(broken) if broken else 'nothing'}."


def breaks(data: BreaksPlot) -> theme.Picture:
    """One bar each on a log axis; a shaded zone holds what is rounding."""
    figure = theme.picture("what breaks the equality of cuts", breaks_sentence(data), height=3.5)
    theme.headline(figure, breaks_sentence(data))
    axes = theme.panel(figure, (0.27, 0.15, 0.69, 0.62), "", x="relative difference of the gradient (log axis)")
    axes.set_title("Weighted right, cut in pieces", fontsize=theme.TEXT, loc="left", fontweight="bold")
    places = -np.arange(len(data.off), dtype=float)
    floor = 1e-17
    for place, (_name, off) in zip(places, data.off.items(), strict=True):
        broken = off > data.tolerance
        axes.barh(
            place, max(off, floor), left=0, height=0.6, color=theme.VERMILION if broken else theme.SKY,
            hatch="///" if broken else "", edgecolor=theme.BLACK, linewidth=0.6,
        )  # fmt: skip
        axes.annotate("  another gradient" if broken else "  rounding", (max(off, floor), place), va="center",
                      fontsize=theme.TEXT - 1)  # fmt: skip
    axes.set_xscale("log")
    theme.log_ticks(axes, "x")
    axes.set_xlim(floor / 10, 1e7)
    axes.axvspan(floor / 10, data.tolerance, color=theme.PALE, alpha=0.5, zorder=0)
    axes.set_yticks(places, list(data.off), fontsize=theme.TEXT)
    axes.grid(axis="y", visible=False)
    return figure


# ------------------------------------------------------------------------------------------ the widget's arithmetic


def vote_data(names: Sequence[str], letters: np.ndarray, gradients: np.ndarray, cut: int, rule: str) -> VotePlot:
    """Who has the vote when an update is cut after `cut` names into two microbatches.

    letters: valid targets of each name (n,); gradients: of each name's *summed* loss (n, parameters), so that every
    weighting is a sum of rows; rule: "average of means" or "total over count".
    """
    due = letters / letters.sum()
    right = gradients.sum(axis=0) / letters.sum()
    per_letter = gradients / letters[:, None]
    shares = [_shares(letters, k, rule) for k in range(1, len(names))]
    turned = [share @ per_letter for share in shares]
    error = np.array([np.linalg.norm(g - right) / np.linalg.norm(right) for g in turned])
    mine = turned[cut - 1]
    cosine = float(mine @ right / (np.linalg.norm(mine) * np.linalg.norm(right)))
    imbalance = np.array([float((share / due).max()) for share in shares])
    angle = float(np.degrees(np.arccos(min(1.0, cosine))))
    return VotePlot(names, letters, shares[cut - 1], cut, rule, angle, imbalance, error, cut - 1)


def _shares(letters: np.ndarray, cut: int, rule: str) -> np.ndarray:
    """Each name's share of the update; every letter of a piece has the same one."""
    if rule == "total over count":
        return letters / letters.sum()
    first = np.arange(len(letters)) < cut
    own = np.where(first, letters[first].sum(), letters[~first].sum())
    return letters / own / 2
