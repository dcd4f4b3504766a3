"""With and without clearing the gradients: test loss of the same seeds side by side. Lesson 01."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.lab import theme


@dataclass(frozen=True, eq=False)
class ClearPlot:
    """settings: names of the rows; cleared, never_cleared: test loss (nats) of shape (settings, seeds), by seed."""

    settings: Sequence[str]
    cleared: np.ndarray
    never_cleared: np.ndarray
    guess: str | None = None

    @property
    def wins(self) -> np.ndarray:
        """In how many seeds the loop that never clears has the lower loss, for each setting."""
        found: np.ndarray = (self.never_cleared < self.cleared).sum(axis=1)
        return found


def clear_sentence(data: ClearPlot) -> str:
    """Who wins in each setting, counted over the seeds."""
    seeds = data.cleared.shape[1]
    said = [f"{name}: {won} of {seeds}" for name, won in zip(data.settings, data.wins, strict=True)]
    return f"Seeds in which the loop that never clears ends with the lower test loss. {'; '.join(said)}."


def clear_plot(data: ClearPlot) -> theme.Picture:
    """One row a setting, one mark a seed, on a log axis: filled circles clear, hollow squares never do."""
    said = clear_sentence(data)
    figure = theme.picture("with and without clearing the gradients", said, height=3.2)
    theme.headline(figure, said)
    axes = theme.panel(figure, (0.3, 0.17, 0.685, 0.62), x="test loss, nats per image (lower is better)")
    axes.set_xscale("log")
    theme.log_ticks(axes, "x")
    places = np.arange(len(data.settings))[::-1]
    for values, line, shift, filled, label in (
        (data.cleared, theme.STRAIGHT, 0.13, True, "clears before each update"),
        (data.never_cleared, theme.RESUMED, -0.13, False, "never clears"),
    ):
        height = np.repeat(places + shift, values.shape[1])
        face = line.color if filled else "white"
        axes.scatter(values.ravel(), height, marker=line.marker, s=46, c=face, edgecolors=line.color, label=label)
    axes.set_yticks(places, data.settings, fontsize=theme.TEXT)
    axes.set_ylim(-0.5, len(data.settings) - 0.3)
    axes.grid(visible=False)
    if data.guess:
        axes.annotate(
            f"your guess for the first row: {data.guess}", (0.99, 0.02), xycoords="axes fraction", ha="right",
            fontsize=theme.TEXT, color=theme.PURPLE,
        )  # fmt: skip
    theme.legend(axes, loc="center right")
    return figure
