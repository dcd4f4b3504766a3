"""Resumed against uninterrupted: where two runs part, and whether the loss curve would have told. Lessons 00 and 04."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from labkit.errors import LabkitError
from labkit.lab import theme


@dataclass(frozen=True)
class Difference:
    """The first update at which one quantity of the two runs is not equal in every bit."""

    update: int
    quantity: str
    straight: float | None = None
    resumed: float | None = None


@dataclass(frozen=True, eq=False)
class ResumePlot:
    """What the two runs did, one entry for each update shown; arrays have the length of `updates`.

    stop: the update after which the run was stopped; lost: what did not come back, in words ("nothing", "optimizer").
    straight_loss, resumed_loss: loss of the fixed probe set in eval mode after each update.
    distance: 2-norm between the two runs' parameters after each update; exactly 0 means equal bits.
    equal: whether every recorded bit of the update is equal. differences: first update per quantity, in recorded order.
    band_low, band_high: smallest and largest probe loss of several seeds, or None.
    """

    stop: int
    lost: str
    updates: np.ndarray
    straight_loss: np.ndarray
    resumed_loss: np.ndarray
    distance: np.ndarray
    straight_rate: np.ndarray
    resumed_rate: np.ndarray
    equal: np.ndarray
    differences: tuple[Difference, ...] = ()
    band_low: np.ndarray | None = None
    band_high: np.ndarray | None = None
    seeds: int = 0
    guess: int | None = field(default=None)

    @property
    def leaves_band_at(self) -> int | None:
        """First update after the stop whose probe loss is outside the spread of the seeds; None: it never leaves."""
        if self.band_low is None or self.band_high is None:
            return None
        outside = (self.updates > self.stop) & ~(
            (self.resumed_loss >= self.band_low) & (self.resumed_loss <= self.band_high)
        )
        return int(self.updates[outside][0]) if outside.any() else None


def resume_plot(
    stop: int,
    lost: str,
    straight: Mapping[str, Sequence[Any] | np.ndarray],
    resumed: Mapping[str, Sequence[Any] | np.ndarray],
    *,
    distance: Sequence[float] | np.ndarray,
    band: np.ndarray | None = None,
    first: int = 1,
    guess: int | None = None,
) -> ResumePlot:
    """Compare two recorded runs and make the data of the plot.

    straight, resumed: one sequence per recorded quantity, in the order in which an update makes them; "probe"
    (probe loss) and "rate" must be among them. Every quantity but "probe" counts for equality, and so does a distance
    other than 0.
    first: number of the first entry's update. band: probe losses of several seeds, shape (seeds, updates).
    Raises LabkitError when the two runs do not hold the same quantities or lengths.
    """
    away = np.asarray(distance, dtype=float)
    updates = np.arange(first, first + len(away))
    _same_shape(straight, resumed, len(away))
    differences, equal = [], away == 0
    for name in [n for n in straight if n != "probe"]:
        here = np.array([_same(a, b) for a, b in zip(straight[name], resumed[name], strict=True)], dtype=bool)
        equal = equal & here
        if not here.all():
            at = int(np.argmin(here))
            differences.append(
                Difference(int(updates[at]), name, _number(straight[name][at]), _number(resumed[name][at]))
            )
    if (away != 0).any():
        differences.append(Difference(int(updates[np.argmax(away != 0)]), "parameters"))
    low, high = (None, None) if band is None else (np.min(band, axis=0), np.max(band, axis=0))
    columns = [np.asarray(run[name], dtype=float) for name in ("probe", "rate") for run in (straight, resumed)]
    return ResumePlot(
        stop,
        lost,
        updates,
        columns[0],
        columns[1],
        away,
        columns[2],
        columns[3],
        equal,
        tuple(sorted(differences, key=lambda d: d.update)),
        low,
        high,
        0 if band is None else len(band),
        guess,
    )


def sentence(data: ResumePlot, values: bool = True) -> str:
    """What the picture shows, in words: stop, what was lost, what differs first, whether the curve would have told.

    values=False leaves out the measured values, so that the sentence can be stored and compared on another machine.
    """
    start = f"Stopped after {data.stop}, {data.lost} lost: "
    if not data.differences:
        return start + f"the two runs never differ, in any recorded bit, through update {data.updates[-1]}."
    first = data.differences[0].update
    told = _told(data.differences)
    parts = [f"{d.quantity} at {d.update}{_values(d) if values else ''}" for d in told]
    return f"{start}equal through update {first - 1}, the first to differ: {', then '.join(parts)}; {_curve(data)}."


def _curve(data: ResumePlot) -> str:
    if data.band_low is None:
        return "no band of seeds was given to judge the curve by"
    left = data.leaves_band_at
    if left is None:
        return f"the curve never leaves the band of {data.seeds} seeds: you would not have noticed"
    return f"the curve leaves the band of {data.seeds} seeds at {left}"


def _told(differences: tuple[Difference, ...]) -> list[Difference]:
    """The earliest difference and the earliest one in the loss: two are enough for a sentence."""
    rest = [d for d in differences[1:] if d.quantity == "loss"] or list(differences[1:2])
    return [differences[0], *rest[:1]]


def _values(d: Difference) -> str:
    return "" if d.straight is None or d.resumed is None else f" ({d.straight:.3g} against {d.resumed:.3g})"


def resumed_against_uninterrupted(data: ResumePlot) -> theme.Picture:
    """Probe loss, distance of the parameters, used rate, and a strip of equal and different updates."""
    figure = theme.picture(
        f"resumed against uninterrupted: stopped after {data.stop}, {data.lost} lost", sentence(data), height=5.2
    )
    theme.headline(figure, sentence(data))
    loss = theme.panel(
        figure, (0.085, 0.525, 0.9, 0.335), "Probe loss (fixed images, eval mode)", y="loss, nats per image", log=True
    )
    away = theme.panel(
        figure, (0.085, 0.2, 0.56, 0.215), "Distance of the parameters", x="update", y="2-norm", log=True
    )
    rate = theme.panel(figure, (0.745, 0.2, 0.24, 0.215), "Used rate", x="update")
    strip = figure.add_axes((0.085, 0.015, 0.9, 0.06))
    _draw_loss(loss, data)
    _draw_distance(away, data)
    rate.plot(
        data.updates, data.straight_rate, **{**theme.STRAIGHT.style(len(data.updates)), "linewidth": 5, "marker": ""}
    )
    rate.plot(data.updates, data.resumed_rate, **{**theme.RESUMED.style(len(data.updates)), "marker": ""})
    low, high = rate.get_ylim()
    rate.set_ylim(min(0.0, low), high * 1.15)
    for axes in (loss, away, rate):
        axes.axvline(data.stop + 0.5, color=theme.GREY, linewidth=1.2, linestyle=(0, (1, 2)))
        axes.set_xlim(data.updates[0] - 1, data.updates[-1] + 1)
    _draw_strip(strip, data)
    return figure


def _draw_loss(axes: Axes, data: ResumePlot) -> None:
    if data.band_low is not None and data.band_high is not None:
        axes.fill_between(
            data.updates,
            data.band_low,
            data.band_high,
            color=theme.PALE,
            linewidth=0,
            label=f"{data.seeds} other seeds",
        )
    after = data.updates >= data.stop
    axes.plot(data.updates, data.straight_loss, label="uninterrupted", **theme.STRAIGHT.style(len(data.updates)))
    axes.plot(
        data.updates[after],
        data.resumed_loss[after],
        label=f"resumed, {data.lost} lost",
        **theme.RESUMED.style(int(after.sum()), filled=False),
    )
    axes.annotate(
        f"stop after {data.stop}",
        (data.stop + 0.5, 0.97),
        xycoords=("data", "axes fraction"),
        fontsize=theme.TEXT - 1,
        xytext=(-4, 0),
        textcoords="offset points",
        ha="right",
        va="top",
        color=theme.GREY,
    )
    if data.guess is not None:
        axes.axvline(data.guess, color=theme.PURPLE, linewidth=1.4, linestyle="-.", label="your guess")
    theme.legend(axes, loc="lower left", ncols=4)
    shown = np.concatenate([data.straight_loss, data.resumed_loss[after]])
    shown = shown[np.isfinite(shown) & (shown > 0)]
    if shown.size:  # room below for the legend
        theme.fit(axes, shown, below=6)


def _draw_distance(axes: Axes, data: ResumePlot) -> None:
    seen = data.distance[np.isfinite(data.distance) & (data.distance > 0)]
    floor = min(1e-8, float(seen.min()) / 30) if seen.size else 1e-8
    axes.set_ylim(floor / 5, (float(seen.max()) if seen.size else 1.0) * 20)
    axes.axhline(floor, color=theme.BLACK, linewidth=1.0)
    axes.annotate(
        "equal bits",
        (0.995, floor),
        xycoords=("axes fraction", "data"),
        xytext=(0, 2),
        textcoords="offset points",
        fontsize=theme.TEXT - 1,
        ha="right",
        va="bottom",
    )
    axes.plot(
        data.updates,
        np.where(data.distance > 0, data.distance, floor),
        **theme.RESUMED.style(len(data.updates), filled=False),
    )


def _draw_strip(axes: Axes, data: ResumePlot) -> None:
    size = float(min(11.0, 380 / len(data.updates))) ** 2
    for mask, face in ((data.equal, theme.BLACK), (~data.equal, "white")):
        axes.scatter(
            data.updates[mask],
            np.zeros(mask.sum()),
            s=size,
            marker="s",
            facecolors=face,
            edgecolors=theme.BLACK,
            linewidths=0.8,
        )
    axes.axvline(data.stop + 0.5, color=theme.GREY, linewidth=1.2, linestyle=(0, (1, 2)))
    axes.set_xlim(data.updates[0] - 1, data.updates[-1] + 1)
    axes.set_ylim(-1, 1)
    axes.set_yticks([])
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    axes.set_title(
        "One square an update: filled = every recorded bit equal, hollow = something differs",
        fontsize=theme.TEXT - 0.5,
        loc="left",
        pad=1,
        y=1.0,
    )


def _same(a: Any, b: Any) -> bool:
    """Equal in value and kind; two nans are the same."""
    if isinstance(a, float) and isinstance(b, float) and np.isnan(a) and np.isnan(b):
        return True
    return bool(np.array_equal(a, b))


def _number(value: Any) -> float | None:
    return (
        float(value)
        if isinstance(value, (int, float, np.floating, np.integer)) and not isinstance(value, bool)
        else None
    )


def _same_shape(straight: Mapping[str, Any], resumed: Mapping[str, Any], length: int) -> None:
    if list(straight) != list(resumed) or not {"probe", "rate"} <= set(straight):
        raise LabkitError(
            f"quantities {list(straight)} against {list(resumed)}", "the same in both, with probe and rate among them"
        )
    wrong = [name for name in straight if len(straight[name]) != length or len(resumed[name]) != length]
    if wrong:
        raise LabkitError(
            f"other lengths than {length} in {wrong}",
            "one entry per update everywhere",
            "cut both runs to the same updates",
        )
