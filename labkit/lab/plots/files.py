"""What a kill leaves behind after each move of publication, and what flipped bits do. Lesson 05."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labkit.lab import theme

OUTCOMES = {
    "old": ("the old checkpoint is used", theme.SKY, "o"),
    "new": ("the new checkpoint is used", theme.GREEN, "s"),
    "half": ("a name on half a file", theme.VERMILION, "X"),
    "none": ("nothing to resume from", theme.BLACK, "v"),
}


@dataclass(frozen=True)
class PublicationPlot:
    """moves: in the order tried; left: for each move one of OUTCOMES, found after a power cut just after it."""

    moves: Sequence[str]
    left: Sequence[str]


def publication_sentence(data: PublicationPlot) -> str:
    """Whether every cut leaves something to resume from; if not, the first that does not."""
    bad = [n for n, what in enumerate(data.left) if what in ("half", "none")]
    if not bad:
        return f"A power cut after any of the {len(data.moves)} moves leaves a complete checkpoint."
    n = bad[0]
    what = OUTCOMES[data.left[n]][0]
    return f"A power cut after move {n + 1} ({data.moves[n]}) leaves {what}; {len(bad)} of {len(data.moves)} cuts do."


def publication(data: PublicationPlot) -> theme.Picture:
    """One mark for each move: what a reader finds when the power is cut just after it."""
    figure = theme.picture("publication, cut after each move", publication_sentence(data), height=3.6)
    theme.headline(figure, publication_sentence(data))
    axes = theme.panel(figure, (0.3, 0.3, 0.68, 0.48), "What a reader finds", x="")
    rows = list(OUTCOMES)
    for n, what in enumerate(data.left):
        _, color, marker = OUTCOMES[what]
        axes.plot(
            n + 1, len(rows) - 1 - rows.index(what), marker, color=color, markersize=13, markeredgecolor=theme.BLACK
        )
    axes.set_yticks(np.arange(len(rows))[::-1], [OUTCOMES[row][0] for row in rows], fontsize=theme.TEXT)
    axes.set_xticks(
        range(1, len(data.moves) + 1),
        [f"{n}. {m}" for n, m in enumerate(data.moves, 1)],
        rotation=30,
        ha="right",
        fontsize=theme.TEXT - 0.5,
    )
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlim(0.4, len(data.moves) + 0.6)
    return figure


@dataclass(frozen=True)
class FlipsPlot:
    """flips: files with one flipped bit; readers: outcome ("noticed", "no effect", "other numbers") -> count."""

    flips: int
    readers: Mapping[str, Mapping[str, int]]


def flips_sentence(data: FlipsPlot) -> str:
    """How many flips each reader noticed."""
    said = [f"{name} noticed {counts.get('noticed', 0)}" for name, counts in data.readers.items()]
    return f"Of {data.flips} files with one flipped bit, {', '.join(said)}."


def flips(data: FlipsPlot) -> theme.Picture:
    """A stacked bar for each way of reading."""
    figure = theme.picture("one flipped bit, read back", flips_sentence(data), height=2.8)
    theme.headline(figure, flips_sentence(data))
    axes = theme.panel(figure, (0.24, 0.19, 0.74, 0.48), "", x="files with one flipped bit")
    kinds = (("noticed", theme.GREEN, ""), ("no effect", theme.PALE, "..."), ("other numbers", theme.VERMILION, "///"))
    places = np.arange(len(data.readers))[::-1]
    at = np.zeros(len(data.readers))
    for kind, color, hatch in kinds:
        width = np.array([counts.get(kind, 0) for counts in data.readers.values()], dtype=float)
        label = {"no effect": "not noticed, without effect", "other numbers": "not noticed, other numbers"}.get(
            kind, kind
        )
        axes.barh(
            places,
            width,
            left=at,
            color=color,
            hatch=hatch,
            edgecolor=theme.BLACK,
            linewidth=0.7,
            label=label,
            height=0.6,
        )
        for place, w, left in zip(places, width, at, strict=True):
            if w > 0.04 * data.flips:
                axes.annotate(
                    f"{w:.0f}",
                    (left + w / 2, place),
                    ha="center",
                    va="center",
                    fontsize=theme.TEXT,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
                )
        at += width
    axes.set_yticks(places, list(data.readers), fontsize=theme.TEXT)
    axes.set_xlim(0, data.flips * 1.01)
    axes.set_ylim(-0.6, len(places) - 0.4)
    axes.grid(visible=False)
    theme.legend(axes, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, handlelength=1.6)
    return figure
