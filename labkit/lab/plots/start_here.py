"""The first resume: probe loss of two runs above two rows of squares, the training log and the weights. Lesson 00."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from labkit.lab import theme

AFTERWARDS = 10
"""How many updates after the stop the sentence looks at when it speaks of the curve."""


@dataclass(frozen=True, eq=False)
class FirstResume:
    """An uninterrupted run and one that was stopped and resumed; arrays hold one entry for each of `updates`.

    stop: the update after which it was stopped; lost: what did not come back, in words ("nothing", "optimizer").
    straight, resumed: probe loss (nats) after each update; straight_logged, resumed_logged: training loss that each
    update logs. log_equal: every logged quantity has equal bits; weights_equal: so have all weights after the update.
    band_low, band_high: smallest and largest probe loss of `seeds` other seeds, or None. guess: an update, or None.
    """

    stop: int
    lost: str
    updates: np.ndarray
    straight: np.ndarray
    resumed: np.ndarray
    straight_logged: np.ndarray
    resumed_logged: np.ndarray
    log_equal: np.ndarray
    weights_equal: np.ndarray
    band_low: np.ndarray | None = None
    band_high: np.ndarray | None = None
    seeds: int = 0
    guess: int | None = None

    @property
    def first_logged(self) -> int | None:
        """The first update whose training log differs."""
        return None if self.log_equal.all() else int(self.updates[np.argmin(self.log_equal)])

    @property
    def times(self) -> float:
        """Mean probe loss of the resumed run over the updates after the stop, in units of the uninterrupted one's."""
        after = (self.updates > self.stop) & (self.updates <= self.stop + AFTERWARDS)
        return float(self.resumed[after].mean() / self.straight[after].mean())


def first_resume_sentence(data: FirstResume, values: bool = True) -> str:
    """What the picture shows; values=False leaves out what was measured, so that the words can be stored."""
    start = f"Stopped after {data.stop}, {data.lost} lost: "
    at = data.first_logged
    if at is None:
        return start + f"every update to {data.updates[-1]} is equal to the uninterrupted run, in every recorded bit."
    place = int(at - data.updates[0])
    losses = f" (loss {data.straight_logged[place]:.3g} against {data.resumed_logged[place]:.3g})" if values else ""
    equal = [int(u) for u in data.updates[data.log_equal] if data.stop < u < at]
    quiet = f"update {_list(equal)} logs equal numbers, " if equal else ""
    said = start + f"{quiet}update {at} is the first to log others{losses}."
    return said + (
        f" On the fixed images the loss of the next {AFTERWARDS} updates is {data.times:.2g} times as high."
        if values
        else ""
    )


def _list(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def first_resume(data: FirstResume) -> theme.Picture:
    """Probe loss on a log axis; below it a square for each update: filled = equal bits, hollow = not."""
    said = first_resume_sentence(data)
    figure = theme.picture(f"the first resume: stopped after {data.stop}, {data.lost} lost", said, height=4.6)
    theme.headline(figure, said)
    loss = theme.panel(
        figure, (0.13, 0.34, 0.855, 0.49), "Loss on 256 fixed images, eval mode", "update", "nats per image", log=True
    )
    squares = figure.add_axes((0.13, 0.015, 0.855, 0.135))
    _draw_loss(loss, data)
    _draw_squares(squares, data)
    for axes in (loss, squares):
        axes.axvline(data.stop + 0.5, color=theme.GREY, linewidth=1.2, linestyle=(0, (1, 2)))
        axes.set_xlim(data.updates[0] - 1, data.updates[-1] + 1)
    return figure


def _draw_loss(axes: Axes, data: FirstResume) -> None:
    count = len(data.updates)
    if data.band_low is not None and data.band_high is not None:
        label = f"between {data.seeds} other seeds"
        axes.fill_between(data.updates, data.band_low, data.band_high, color=theme.PALE, linewidth=0, label=label)
    axes.plot(data.updates, data.straight, label="uninterrupted", **theme.STRAIGHT.style(count))
    after = data.updates >= data.stop
    style = theme.RESUMED.style(int(after.sum()), filled=False)
    axes.plot(data.updates[after], data.resumed[after], label=f"resumed, {data.lost} lost", **style)
    axes.annotate(
        f"stopped after {data.stop}", (data.stop + 0.5, 0.98), xycoords=("data", "axes fraction"), xytext=(-4, 0),
        textcoords="offset points", fontsize=theme.TEXT - 1, ha="right", va="top", color=theme.GREY,
    )  # fmt: skip
    if data.guess is not None:
        axes.axvline(data.guess, color=theme.PURPLE, linewidth=1.6, linestyle="-.", label="your guess")
    seen = [data.straight, data.resumed, *(band for band in (data.band_low, data.band_high) if band is not None)]
    theme.fit(axes, *seen, below=5)  # room below for the legend
    theme.legend(axes, loc="lower left", ncols=4)


def _draw_squares(axes: Axes, data: FirstResume) -> None:
    size = float(min(9.5, 380 / len(data.updates))) ** 2
    for height, equal in ((1, data.log_equal), (0, data.weights_equal)):
        for mask, face in ((equal, theme.BLACK), (~equal, "white")):
            axes.scatter(
                data.updates[mask], np.full(mask.sum(), height), s=size, marker="s", facecolors=face,
                edgecolors=theme.BLACK, linewidths=0.8,
            )  # fmt: skip
    axes.set_ylim(-0.7, 1.7)
    axes.set_yticks([1, 0], ["its log", "its weights"], fontsize=theme.TEXT)
    axes.tick_params(length=0)
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    axes.set_title(
        "One column an update: filled = equal to the uninterrupted run in every bit, hollow = not",
        fontsize=theme.TEXT - 0.5, loc="left", pad=2, y=1.0,
    )  # fmt: skip
