"""Batch sizes, a first update, where time goes, and a verdict that depends on the budget. Lesson 08."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.lab import theme
from labkit.lab.plots.budget import headline, stacked
from labkit.trials import Verdict

RECORDED: dict[str, Any] = {"linestyle": "none", "color": theme.GREY, "markerfacecolor": "none", "markersize": 9}

# ------------------------------------------------------------------------------------------ batch sizes


@dataclass(frozen=True, eq=False)
class BatchPlot:
    """seconds, recorded: (network, batch size) -> seconds of one update, here and on `recorded_on`.

    examples: in one epoch. guess: the epoch at the smallest batch over that at `usual`, or None.
    """

    seconds: Mapping[tuple[str, int], float]
    recorded: Mapping[tuple[str, int], float]
    recorded_on: str
    examples: int
    usual: int = 64
    guess: float | None = None

    def batches(self, network: str) -> list[int]:
        return sorted(batch for name, batch in self.seconds if name == network)

    @property
    def networks(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.seconds))

    def epoch(self, network: str, batch: int) -> float:
        """Seconds of one epoch: whole batches and a short last one, taken for a whole one."""
        return self.seconds[network, batch] * math.ceil(self.examples / batch)

    def longer(self, network: str) -> float:
        """How many times longer an epoch takes at the smallest batch than at the usual one."""
        return self.epoch(network, self.batches(network)[0]) / self.epoch(network, self.usual)


def batch_sentence(data: BatchPlot) -> str:
    """The smallest batch against the usual one, for each network."""
    least = min(batch for _, batch in data.seconds)
    parts = [
        f"{name}: an update takes {data.seconds[name, least] / data.seconds[name, data.usual]:.2g} times as long, "
        f"an epoch {data.longer(name):.2g} times"
        for name in data.networks
    ]
    return f"A batch of {least} in place of {data.usual}. " + "; ".join(parts) + "."


def batch(data: BatchPlot) -> theme.Picture:
    """Milliseconds of an update and of an epoch against the batch size; open grey marks: the recorded machine."""
    figure = theme.picture("time of one update and of one epoch, by batch size", batch_sentence(data), height=3.9)
    headline(figure, batch_sentence(data))
    every = sorted({batch for _, batch in data.seconds})
    update = theme.panel(figure, (0.085, 0.15, 0.4, 0.6), "One update", x="images in the batch", y="ms", log=True)
    epoch = theme.panel(figure, (0.585, 0.15, 0.4, 0.6), "One epoch", x="images in the batch", y="ms", log=True)
    for axes, times in ((update, lambda n, b: 1), (epoch, lambda n, b: math.ceil(data.examples / b))):
        for name, line in zip(data.networks, theme.LINES, strict=False):
            sizes = data.batches(name)
            here = [1e3 * data.seconds[name, b] * times(name, b) for b in sizes]
            kept = [(b, 1e3 * s * times(n, b)) for (n, b), s in data.recorded.items() if n == name]
            axes.plot(sizes, here, label=name, **line.style(len(sizes)))
            label = data.recorded_on if name == data.networks[-1] else None
            axes.plot(*zip(*kept, strict=True), marker=line.marker, label=label, **RECORDED)
        axes.set_xscale("log")
        axes.set_xticks(every, [str(batch) for batch in every])
        axes.minorticks_off()
        shown = [line.get_ydata() for line in axes.lines]
        theme.fit(axes, *map(np.asarray, shown), above=6 if axes is update else 2.5)
    if data.guess is not None:
        height = 1e3 * data.guess * data.epoch(data.networks[0], data.usual)
        epoch.plot([every[0]], [height], "*", color=theme.PURPLE, markersize=14, label="your guess")
        theme.legend(epoch, loc="upper right")
    theme.legend(update, loc="upper left")
    return figure


# ------------------------------------------------------------------------------------------ a first update


@dataclass(frozen=True, eq=False)
class FirstPlot:
    """seconds, recorded: of the first updates of a fresh process, in order, here and on `recorded_on`."""

    seconds: Sequence[float]
    recorded: Sequence[float]
    recorded_on: str
    updates: int = 2000

    @property
    def usual(self) -> float:
        """Median after the first five."""
        return float(np.median(self.seconds[5:]))


def first_sentence(data: FirstPlot) -> str:
    """Three forecasts of one run."""
    first, five = data.seconds[0] * data.updates, float(np.mean(data.seconds[:5])) * data.updates
    return (
        f"Forecast of {data.updates:,} updates: from the first alone {first:.2g} s, from the first five {five:.2g} s, "
        f"from those after them {data.usual * data.updates:.2g} s."
    )


def first(data: FirstPlot) -> theme.Picture:
    """A bar for each update; the line is the usual one."""
    figure = theme.picture("the first updates of a fresh process", first_sentence(data), height=3.2)
    headline(figure, first_sentence(data))
    axes = theme.panel(figure, (0.085, 0.17, 0.9, 0.6), "Updates of a fresh process", x="update", y="ms", log=True)
    updates = np.arange(1, len(data.seconds) + 1)
    axes.bar(updates, 1e3 * np.asarray(data.seconds), color=theme.BLUE, width=0.7, label="this machine")
    axes.plot(updates[: len(data.recorded)], 1e3 * np.asarray(data.recorded), marker="s", label=data.recorded_on,
              **RECORDED)  # fmt: skip
    axes.axhline(1e3 * data.usual, color=theme.VERMILION, linestyle="--", label="median from the sixth on")
    axes.set_xticks(updates)
    theme.fit(axes, 1e3 * np.asarray(data.seconds), 1e3 * np.asarray(data.recorded), above=3)
    theme.legend(axes, loc="upper right", ncols=3)
    return figure


# ------------------------------------------------------------------------------------------ where time goes


@dataclass(frozen=True, eq=False)
class PartsPlot:
    """parts: what was run -> seconds by part; recorded: the same from `recorded_on`."""

    parts: Mapping[str, Mapping[str, float]]
    recorded: Mapping[str, Mapping[str, float]]
    recorded_on: str

    def share(self, name: str, *parts: str) -> float:
        """What some parts take of the whole."""
        return sum(self.parts[name][part] for part in parts) / sum(self.parts[name].values())


def parts_sentence(data: PartsPlot) -> str:
    """The largest part of each run, and what a network twice as fast would save."""
    said = []
    for name, parts in data.parts.items():
        largest = max(parts, key=parts.__getitem__)
        saved = data.share(name, "forward", "backward") / 2
        said.append(f"{name}: most time goes to {largest}; forward and backward twice as fast would save {saved:.0%}")
    return ". ".join(said) + "."


def parts(data: PartsPlot) -> theme.Picture:
    """A stacked bar for each run, here and recorded, as parts of its whole time."""
    rows = [(name, "this machine", data.parts[name]) for name in data.parts]
    rows += [(name, data.recorded_on, data.recorded[name]) for name in data.parts]
    rows.sort(key=lambda row: list(data.parts).index(row[0]))
    figure = theme.picture("where the time of an update goes", parts_sentence(data), height=1.5 + 0.45 * len(rows))
    headline(figure, parts_sentence(data))
    axes = theme.panel(figure, (0.27, 0.2, 0.7, 0.5), "Parts of the time", x="per cent of the run")
    stacked(axes, [row[2] for row in rows], across=True)
    names = [f"{name}\n{where}" for name, where, _ in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=theme.TEXT - 1.5)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.grid(visible=False)
    axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.08), ncols=7, fontsize=theme.TEXT - 1, frameon=False,
                handlelength=1.2, columnspacing=1)  # fmt: skip
    return figure


# ------------------------------------------------------------------------------------------ a verdict and its budget


@dataclass(frozen=True, eq=False)
class EqualPlot:
    """differences: budget in words -> loss of B minus loss of A for each seed; half: half of its 95% interval."""

    differences: Mapping[str, np.ndarray]
    half: Mapping[str, float]
    verdicts: Mapping[str, str]
    second: str = "B"

    @classmethod
    def of(cls, a: Sequence[float], b: Mapping[str, Sequence[float]], verdicts: Mapping[str, Verdict]) -> EqualPlot:
        """From the losses of A and, for each budget, those of B with their verdict."""
        differences = {name: np.asarray(losses) - np.asarray(a) for name, losses in b.items()}
        words = {name: verdict.verdict for name, verdict in verdicts.items()}
        return cls(differences, {name: verdict.half_width for name, verdict in verdicts.items()}, words)


def equal_sentence(data: EqualPlot) -> str:
    """The verdict at each budget."""
    said = "; ".join(f"at {budget} {verdict}" for budget, verdict in data.verdicts.items())
    return f"{data.second}: {said}."


def equal(data: EqualPlot) -> theme.Picture:
    """A circle for each seed, a square with a bar for mean and interval."""
    figure = theme.picture("one comparison at three budgets", equal_sentence(data), height=3.2)
    headline(figure, equal_sentence(data))
    axes = theme.panel(figure, (0.19, 0.17, 0.79, 0.58), "Loss of B minus loss of A, a circle for each seed",
                       x="nats on the validation images (left of 0: B is better)")  # fmt: skip
    axes.axvline(0, color=theme.GREY, linewidth=1)
    for place, (name, difference) in enumerate(data.differences.items()):
        axes.scatter(difference, np.full(len(difference), 0.16 - place), s=34, facecolors="white",
                     edgecolors=theme.BLUE)  # fmt: skip
        axes.errorbar(float(np.mean(difference)), -0.14 - place, xerr=data.half[name], fmt="s", color=theme.VERMILION,
                      capsize=5, linewidth=2.2)  # fmt: skip
    axes.set_yticks([-n for n in range(len(data.differences))], list(data.differences), fontsize=theme.TEXT)
    axes.set_ylim(-len(data.differences) + 0.5, 0.5)
    axes.grid(visible=False)
    return figure
