"""The update under a magnifying glass: how far each part has moved in one named move. Lesson 01."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.lab import theme


@dataclass(frozen=True, eq=False)
class MovesPlot:
    """moves: names in order; parts: what may move; distance: 2-norm, shape (moves, parts); shown: index of a move.

    rates: the schedule, one entry an update; used, following: index of the rate this update uses, and of the next one;
    moved_on: whether the schedule has moved by the time of this move. before, after: norms of each part around it.
    """

    moves: Sequence[str]
    parts: Sequence[str]
    distance: np.ndarray
    before: np.ndarray
    after: np.ndarray
    shown: int
    rates: np.ndarray
    used: int
    following: int
    moved_on: bool


def moves_sentence(data: MovesPlot) -> str:
    """What this move touched and what it left alone."""
    far = data.distance[data.shown]
    touched = [n for n in range(len(data.parts)) if far[n] > 0]
    if not touched and data.moved_on:
        old, new = data.rates[data.used], data.rates[data.following]
        return f"After {data.moves[data.shown]}: the rate went from {old:.3g} to {new:.3g}; nothing else moved."
    if not touched:
        return f"After {data.moves[data.shown]}: nothing has moved."
    said = [
        f"{data.parts[n]} went from norm {data.before[data.shown, n]:.3g} to {data.after[data.shown, n]:.3g}"
        for n in touched
    ]
    rest = "; nothing else moved" if len(touched) < len(data.parts) else ""
    return f"After {data.moves[data.shown]}: {', '.join(said)}{rest}."


def update_moves(data: MovesPlot) -> theme.Picture:
    """Five bars for the move shown, and the rate in use beside the rate that comes next."""
    move = data.moves[data.shown]
    figure = theme.picture(f"the update under a magnifying glass: {move}", moves_sentence(data), height=3.6)
    theme.headline(figure, moves_sentence(data))
    bars = theme.panel(
        figure,
        (0.19, 0.14, 0.42, 0.64),
        f"Move {data.shown + 1} of {len(data.moves)}: {move}",
        x="distance moved (2-norm)",
    )
    rates = theme.panel(figure, (0.71, 0.14, 0.27, 0.64), "Learning rate", x="update")
    places = np.arange(len(data.parts))[::-1]
    far, most = data.distance[data.shown], max(float(data.distance.max()), 1e-12)
    bars.barh(places, far, color=theme.BLUE, edgecolor=theme.BLACK, height=0.6)
    for place, value in zip(places, far, strict=True):
        text = f"{value:.3g}" if value > 0 else "still"
        bars.annotate(
            text, (value, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=theme.TEXT - 1
        )
    bars.set_yticks(places, data.parts, fontsize=theme.TEXT)
    bars.set_xlim(0, most * 1.2)
    bars.grid(visible=False)
    updates = np.arange(1, len(data.rates) + 1)
    rates.plot(updates, data.rates, color=theme.GREY, linewidth=1.2)
    now = data.following if data.moved_on else data.used
    rates.plot(
        updates[data.used], data.rates[data.used], "o", color=theme.BLUE, markersize=9, label="used by this update"
    )
    rates.plot(
        updates[now],
        data.rates[now],
        "s",
        color=theme.VERMILION,
        markersize=12,
        markerfacecolor="none",
        markeredgewidth=1.8,
        label="in the optimizer now",
    )
    rates.set_ylim(0, float(data.rates.max()) * 1.6)
    theme.legend(rates, loc="upper left", handlelength=1.2)
    return figure
