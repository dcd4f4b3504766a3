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
    """moves: in the order tried; left: for each move one of OUTCOMES, found after the event struck just after it.

    event: "killed", "power cut" or "disk full". listings: for each move what lay on the disk then, (name, bytes).
    at: the move that is looked at, counted from 1, or 0 for none.
    """

    moves: Sequence[str]
    left: Sequence[str]
    event: str = "power cut"
    listings: Sequence[Sequence[tuple[str, int]]] = ()
    at: int = 0


_EVENT = {"power cut": "A power cut", "killed": "A kill", "disk full": "A disk that is full"}
_EVENTS = {"power cut": "cuts", "killed": "kills", "disk full": "moves"}


def publication_sentence(data: PublicationPlot) -> str:
    """Whether every cut leaves something to resume from; if not, the first that does not. Then the move looked at."""
    bad = [n for n, what in enumerate(data.left) if what in ("half", "none")]
    event, many = _EVENT[data.event], _EVENTS[data.event]
    found = OUTCOMES[data.left[data.at - 1]][0]
    here = f" After move {data.at}, {data.moves[data.at - 1]}: {found}." if data.at else ""
    if not bad:
        return f"{event} after any of the {len(data.moves)} moves leaves a complete checkpoint.{here}"
    n = bad[0]
    what = OUTCOMES[data.left[n]][0]
    head = f"{event} after move {n + 1} ({data.moves[n]}) leaves {what}"
    return f"{head}; {len(bad)} of {len(data.moves)} {many} do.{here}"


_SHORT = {"old": "old", "new": "new", "half": "half a file", "none": "nothing"}


def publication(data: PublicationPlot) -> theme.Picture:
    """A row for each move: what a reader finds when it was the last one. Beside it what lies on the disk then."""
    rows, beside = len(data.moves), data.at > 0 and len(data.listings) > 0
    figure = theme.picture(
        f"publication, {data.event} after each move", publication_sentence(data), height=1.2 + 0.26 * max(rows, 4)
    )
    theme.headline(figure, publication_sentence(data))
    height = figure.get_figheight()
    place = (0.265, 0.12 / height, 0.33 if beside else 0.6, 1 - 1.05 / height)
    axes = theme.panel(figure, place)
    title = f"{data.event.capitalize()} after each move: a reader then finds ..."
    axes.set_title(title, loc="left", x=-0.77 if beside else -0.42, pad=20, fontsize=theme.TEXT, fontweight="bold")
    for column, (what, (_, color, marker)) in enumerate(OUTCOMES.items()):
        at = [n + 1 for n, found in enumerate(data.left) if found == what]
        axes.plot([column] * len(at), at, marker, color=color, markersize=9, markeredgecolor=theme.BLACK)
    axes.set_xticks(range(len(OUTCOMES)), [_SHORT[what] for what in OUTCOMES], fontsize=theme.TEXT - 1)
    axes.xaxis.tick_top()
    axes.set_yticks(range(1, rows + 1), [f"{n}  {m}" for n, m in enumerate(data.moves, 1)], fontsize=theme.TEXT - 0.5)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_ylim(max(rows, 4) + 0.6, 0.4)
    axes.set_xlim(-0.5, len(OUTCOMES) - 0.5)
    if beside:
        axes.axhspan(data.at - 0.5, data.at + 0.5, color=theme.YELLOW, alpha=0.45, linewidth=0, zorder=0)
        _listing(figure, data)
    return figure


def _listing(figure: theme.Picture, data: PublicationPlot) -> None:
    """Names and bytes on the disk after the move that is looked at."""
    files, top = data.listings[data.at - 1], 1 - 0.42 / figure.get_figheight()
    lines = [f"{size:>6,}  {name if len(name) <= 34 else '…' + name[-33:]}" for name, size in files] or ["  nothing"]
    head = f"On the disk then (move {data.at})"
    figure.text(0.63, top, head, fontsize=theme.TEXT, va="top", fontweight="bold")
    text = "\n".join([" bytes  file", *lines])
    below = top - 0.3 / figure.get_figheight()
    figure.text(0.63, below, text, fontsize=theme.TEXT - 2, va="top", family="monospace", linespacing=1.5)


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
