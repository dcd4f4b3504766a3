"""Resumed against uninterrupted: where two runs part, and whether the loss curve would have told. Lessons 00 and 04."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from labkit.errors import LabkitError
from labkit.lab import theme
from labkit.proof.ablate import spread


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
    logged: whether all that a training log holds is equal, or None where only `equal` is known.
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
    logged: np.ndarray | None = None

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
    log: Collection[str] | None = None,
    reach: int = 0,
) -> ResumePlot:
    """Compare two recorded runs and make the data of the plot.

    straight, resumed: one sequence per recorded quantity, in the order in which an update makes them; "probe"
    (probe loss) and "rate" must be among them. Every quantity but "probe" counts for equality, and so does a distance
    other than 0.
    first: number of the first entry's update. band: probe losses of several seeds, shape (seeds, updates).
    log: the quantities that a training log holds; they are told before the parameters, the others after them.
    reach: the band is what the seeds span within so many updates on either side.
    Raises LabkitError when the two runs do not hold the same quantities or lengths.
    """
    away = np.asarray(distance, dtype=float)
    updates = np.arange(first, first + len(away))
    _same_shape(straight, resumed, len(away))
    differences, equal, logged = [], away == 0, np.ones(len(away), dtype=bool)
    names = [name for name in straight if name != "probe"]
    told_after = [name for name in names if log is not None and name not in log]
    for name in [name for name in names if name not in told_after] + ["parameters"] + told_after:
        here = away == 0 if name == "parameters" else _equal_entries(straight[name], resumed[name])
        equal = equal & here
        if log is not None and name in log:
            logged = logged & here
        if not here.all():
            at, both = int(np.argmin(here)), (straight.get(name), resumed.get(name))
            values = [None if run is None else _number(run[at]) for run in both]
            differences.append(Difference(int(updates[at]), name, *values))
    low, high = (None, None) if band is None else spread(np.asarray(band, dtype=float), reach)
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
        None if log is None else logged,
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
    quiet = data.logged is not None and data.logged.all()
    log = "; every number that training logs stays equal" if quiet else ""
    found = f"equal through update {first - 1}, the first to differ: {', then '.join(parts)}{log}"
    return f"{start}{found}; {_curve(data)}."


def _curve(data: ResumePlot) -> str:
    if data.band_low is None:
        return "no band of seeds was given to judge the curve by"
    left = data.leaves_band_at
    at = int(np.argmax(data.updates == left))
    if left is not None and data.resumed_loss[at] < data.band_low[at]:
        return f"the curve leaves the band of {data.seeds} seeds at {left}, downwards: it looks better"
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
        f"resumed against uninterrupted: stopped after {data.stop}, {data.lost} lost", sentence(data), height=5.6
    )
    theme.headline(figure, sentence(data))
    loss = theme.panel(
        figure, (0.115, 0.545, 0.87, 0.32), "Probe loss (fixed examples, eval mode)", y="nats", log=True
    )
    away = theme.panel(
        figure, (0.115, 0.25, 0.53, 0.2), "Distance of the parameters", x="update", y="2-norm", log=True
    )
    rate = theme.panel(figure, (0.745, 0.25, 0.24, 0.2), "Used rate", x="update")
    strip = figure.add_axes((0.115, 0.015, 0.87, 0.1))
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
            label=f"{data.seeds} seeds",
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
        theme.fit(axes, shown, below=max(6.0, float(shown.max() / shown.min()) ** 0.25))


def _draw_distance(axes: Axes, data: ResumePlot) -> None:
    seen = data.distance[np.isfinite(data.distance) & (data.distance > 0)]
    floor = min(1e-8, float(seen.min()) / 30) if seen.size else 1e-8
    top = float(seen.max()) if seen.size else 1.0
    axes.set_ylim(floor / 5, top * 20)
    axes.axhline(floor, color=theme.BLACK, linewidth=1.0)
    decades = np.arange(np.ceil(np.log10(floor)) + 3, np.log10(top * 20))
    shown = 10.0 ** decades[:: max(1, round(len(decades) / 3))]
    axes.set_yticks([floor, *shown], ["equal bits", *(theme._decade(value) for value in shown)])
    axes.plot(
        data.updates,
        np.where(data.distance > 0, data.distance, floor),
        **theme.RESUMED.style(len(data.updates), filled=False),
    )


def _draw_strip(axes: Axes, data: ResumePlot) -> None:
    rows = [("state", data.equal)] if data.logged is None else [("log", data.logged), ("state", data.equal)]
    size = float(min(10.0, 380 / len(data.updates))) ** 2
    for height, (_, equal) in enumerate(reversed(rows)):
        for mask, face in ((equal, theme.BLACK), (~equal, "white")):
            axes.scatter(
                data.updates[mask], np.full(mask.sum(), height), s=size, marker="s", facecolors=face,
                edgecolors=theme.BLACK, linewidths=0.7,
            )  # fmt: skip
    axes.axvline(data.stop + 0.5, color=theme.GREY, linewidth=1.2, linestyle=(0, (1, 2)))
    axes.set_xlim(data.updates[0] - 1, data.updates[-1] + 1)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.set_yticks(range(len(rows))[::-1], [name for name, _ in rows], fontsize=theme.TEXT)
    axes.tick_params(length=0)
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    what = "One square an update" if data.logged is None else "Training log and whole state, one column an update"
    axes.set_title(
        f"{what}: filled = equal bits, hollow = not", fontsize=theme.TEXT - 0.5, loc="left", pad=2, y=1.0
    )


def _equal_entries(a: Sequence[Any] | np.ndarray, b: Sequence[Any] | np.ndarray) -> np.ndarray:
    return np.array([_same(x, y) for x, y in zip(a, b, strict=True)], dtype=bool)


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
