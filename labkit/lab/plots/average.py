"""Raw against averaged weights, and what the average is made of. Lesson 06."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.lab import theme


@dataclass(frozen=True, eq=False)
class AveragePlot:
    """updates: counted from 1; raw, averaged: test loss after each; raw_score, averaged_score: last accuracy.

    shares: what the average holds, shape (4, updates): the initial weights, older updates, the last 100 without
    the last 10, the last 10; sums to 1. lost: what did not come back at `stop`, or "" for a run without a stop.
    """

    updates: np.ndarray
    raw: np.ndarray
    averaged: np.ndarray
    raw_score: float
    averaged_score: float
    shares: np.ndarray
    decay: float
    warmup: bool
    lost: str = ""
    stop: int = 0


def shares(decays: np.ndarray) -> np.ndarray:
    """What an average is made of after each update, given the decay each one used; as AveragePlot.shares."""
    n = len(decays)
    out = np.zeros((4, n))
    for last in range(n):
        kept = np.cumprod(decays[last::-1])  # share left of what was in the average before update last, last-1, ...
        weight = np.concatenate([[1.0], kept[:-1]]) * (1 - decays[last::-1])
        out[:, last] = kept[-1], weight[100:].sum(), weight[10:100].sum(), weight[:10].sum()
    return out


def average_sentence(data: AveragePlot) -> str:
    """The share of the random start, and both scores."""
    setting = f"decay {data.decay:g}{' with warm-up' if data.warmup else ''}"
    start = f"Update {data.updates[-1]}, {setting}: {data.shares[0, -1]:.0%} of the average is still the random start; "
    lost = f"; resumed at {data.stop} with {data.lost} lost" if data.lost and data.lost != "nothing" else ""
    return f"{start}it scores {data.averaged_score:.0%}, the raw weights {data.raw_score:.0%}{lost}."


def average(data: AveragePlot) -> theme.Picture:
    """Test loss of raw and averaged weights; below, what the average is made of."""
    name = f"the average: decay {data.decay:g}{', warm-up' if data.warmup else ''}" + (
        f", {data.lost} lost" if data.lost else ""
    )
    figure = theme.picture(name, average_sentence(data), height=4.8)
    theme.headline(figure, average_sentence(data))
    loss = theme.panel(figure, (0.085, 0.5, 0.89, 0.345), "Test loss", y="nats per image", log=True)
    made = theme.panel(figure, (0.085, 0.1, 0.89, 0.28), "What the average is made of", x="update", y="per cent")
    loss.plot(data.updates, data.raw, label="raw weights", **theme.STRAIGHT.style(len(data.updates)))
    loss.plot(
        data.updates, data.averaged, label="averaged weights", **theme.RESUMED.style(len(data.updates), filled=False)
    )
    if data.stop:
        for axes in (loss, made):
            axes.axvline(data.stop + 0.5, color=theme.GREY, linewidth=1.2, linestyle=(0, (1, 2)))
    theme.fit(loss, data.raw, data.averaged, below=1.3, above=1.6)
    theme.legend(loss, loc="upper right")
    parts = (
        ("random start", theme.PALE, ""),
        ("older updates", theme.SKY, "..."),
        ("last 11 to 100", theme.GREEN, "///"),
        ("last 10", theme.ORANGE, "xxx"),
    )
    areas = made.stackplot(data.updates, 100 * data.shares, colors=[p[1] for p in parts], labels=[p[0] for p in parts])
    for area, (_, _, hatch) in zip(areas, parts, strict=True):
        area.set_hatch(hatch)
        area.set_edgecolor(theme.BLACK)
        area.set_linewidth(0.4)
    made.set_ylim(0, 100)
    for axes in (loss, made):
        axes.set_xlim(data.updates[0], data.updates[-1])
    made.legend(
        loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, fontsize=theme.TEXT - 1, frameon=False, handlelength=1.6
    )
    return figure
