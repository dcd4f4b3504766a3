"""Raw against averaged weights, and what the average is made of. Lesson 06."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.lab import theme


@dataclass(frozen=True, eq=False)
class AveragePlot:
    """updates: counted from 1; raw, averaged: validation loss after each; raw_score, averaged_score: last accuracy.

    shares: what the average holds, shape (4, updates): the initial weights, older updates, the last 100 without
    the last 10, the last 10; sums to 1. lost: what did not come back at `stop`, or "" for a run without a stop.
    whole: where something was lost, the averaged loss of the run that lost nothing.
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
    whole: np.ndarray | None = None


AFTERWARDS = 50
"""How many updates after the stop the sentence looks at when something was lost."""


def shares(decays: np.ndarray) -> np.ndarray:
    """What an average is made of after each update, given the decay each one used; as AveragePlot.shares."""
    return made_of(decays)


def made_of(decays: np.ndarray, reset_at: int = 0) -> np.ndarray:
    """As shares(); after update reset_at (0: never) the average became that update's weights."""
    n = len(decays)
    out, weight = np.zeros((4, n)), np.zeros(n + 1)  # weight[0]: the initial weights, then one entry an update
    weight[0] = 1.0
    for update, decay in enumerate(decays, start=1):
        weight *= decay
        weight[update] += 1 - decay
        if update == reset_at:
            weight[:] = 0.0
            weight[update] = 1.0
        newest = weight[1 : update + 1][::-1]
        out[:, update - 1] = weight[0], newest[100:].sum(), newest[10:100].sum(), newest[:10].sum()
    return out


def average_sentence(data: AveragePlot) -> str:
    """The share of the random start, and both scores."""
    setting = f"decay {data.decay:g}{' with warm-up' if data.warmup else ''}"
    start = f"Update {data.updates[-1]}, {setting}: {data.shares[0, -1]:.0%} of the average is still the random start; "
    lost = f"; resumed at {data.stop} with {data.lost} lost" if data.lost and data.lost != "nothing" else ""
    said = f"{start}it scores {data.averaged_score:.0%}, the raw weights {data.raw_score:.0%}{lost}."
    if data.whole is None:
        return said
    after = (data.updates > data.stop) & (data.updates <= data.stop + AFTERWARDS)
    with_loss, without = float(data.averaged[after].mean()), float(data.whole[after].mean())
    if (data.averaged == data.whole).all():
        return f"{said} Nothing changed: without warm-up the count decides nothing."
    words = f"its mean loss over the next {AFTERWARDS} updates is {with_loss:.3f}, and {without:.3f} with nothing lost."
    return f"{said[:-1]}: {words}"


def average(data: AveragePlot) -> theme.Picture:
    """Validation loss of raw and averaged weights; below, what the average is made of."""
    name = f"the average: decay {data.decay:g}{', warm-up' if data.warmup else ''}" + (
        f", {data.lost} lost" if data.lost else ""
    )
    figure = theme.picture(name, average_sentence(data), height=4.8)
    theme.headline(figure, average_sentence(data))
    loss = theme.panel(figure, (0.085, 0.5, 0.89, 0.345), "Validation loss", y="nats per image", log=True)
    made = theme.panel(figure, (0.085, 0.1, 0.89, 0.28), "What the average is made of", x="update", y="per cent")
    loss.plot(data.updates, data.raw, label="raw weights", **theme.STRAIGHT.style(len(data.updates)))
    loss.plot(
        data.updates, data.averaged, label="averaged weights", **theme.RESUMED.style(len(data.updates), filled=False)
    )
    if data.whole is not None:
        loss.plot(data.updates, data.whole, color=theme.BLACK, linewidth=1.4, linestyle=":", label="nothing lost")
    if data.stop:
        for axes in (loss, made):
            axes.axvline(data.stop + 0.5, color=theme.GREY, linewidth=1.2, linestyle=(0, (1, 2)))
    theme.fit(loss, data.raw, data.averaged, below=1.3, above=1.3)
    theme.legend(loss, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3)
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
