"""Who drinks from which stream: what stays equal when somebody draws extra numbers. Lesson 02."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.lab import theme


@dataclass(frozen=True, eq=False)
class StreamsPlot:
    """stream: who was drawn from, in words; draws: how many numbers; at: after which update.

    rows: what is compared; first: number of the first update shown; equal: bool, shape (rows, updates).
    """

    stream: str
    draws: int
    at: int
    rows: Sequence[str]
    first: int
    equal: np.ndarray


def streams_sentence(data: StreamsPlot) -> str:
    """Which rows stay equal, and from which update the others differ."""
    many = {0: "No number", 1: "One number"}.get(data.draws, f"{data.draws} numbers")
    parts = []
    for row, equal in zip(data.rows, data.equal, strict=True):
        parts.append(
            f"{row} equal" if equal.all() else f"{row} different from update {data.first + int(np.argmin(equal))}"
        )
    return f"{many} drawn from {data.stream} after update {data.at}: {', '.join(parts)}."


def streams(data: StreamsPlot) -> theme.Picture:
    """One square for each row and update: filled = equal, hollow = changed."""
    figure = theme.picture(
        f"who drinks from which stream: {data.draws} from {data.stream}", streams_sentence(data), height=3.0
    )
    theme.headline(figure, streams_sentence(data))
    title = "Filled = equal in every bit, hollow = changed; dashed line: the extra draws"
    axes = theme.panel(figure, (0.19, 0.17, 0.79, 0.55), title, x="update")
    updates = np.arange(data.first, data.first + data.equal.shape[1])
    size = min(13.0, 360 / len(updates)) ** 2
    for n, equal in enumerate(data.equal):
        height = np.full(len(updates), len(data.rows) - 1 - n, dtype=float)
        for mask, face in ((equal, theme.BLACK), (~equal, "white")):
            axes.scatter(
                updates[mask], height[mask], s=size, marker="s", facecolors=face, edgecolors=theme.BLACK, linewidths=0.8
            )
    axes.set_yticks(np.arange(len(data.rows))[::-1], data.rows, fontsize=theme.TEXT)
    axes.set_ylim(-0.7, len(data.rows) - 0.3)
    axes.set_xlim(updates[0] - 1, updates[-1] + 1)
    axes.grid(visible=False)
    axes.axvline(data.at + 0.5, color=theme.VERMILION, linewidth=1.6, linestyle="--")
    return figure
