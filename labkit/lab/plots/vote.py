"""Who has the vote: the share of each name in an update, by letters and by microbatches. Lesson 03."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.lab import theme


@dataclass(frozen=True, eq=False)
class VotePlot:
    """names: of one update, in order; letters: valid targets of each; share: of the update, sums to 1.

    cut: names in the first microbatch; rule: how microbatches are joined, in words; angle: degrees between this and the
    right gradient. imbalance, error: one point for each possible cut (largest share over due share; relative error of
    the gradient); you: index of the cut shown.
    """

    names: Sequence[str]
    letters: np.ndarray
    share: np.ndarray
    cut: int
    rule: str
    angle: float
    imbalance: np.ndarray
    error: np.ndarray
    you: int


def vote_sentence(data: VotePlot) -> str:
    """The first microbatch's due share and the one it has."""
    total, first = int(data.letters.sum()), int(data.letters[: data.cut].sum())
    who = f"'{data.names[0]}' and its end mark are" if data.cut == 1 else f"The first {data.cut} names are"
    have = float(data.share[: data.cut].sum())
    turn = (
        "the gradient points the right way"
        if data.angle < 0.05
        else f"the gradient points {data.angle:.0f} degrees away"
    )
    return f"{who} {first} of {total} targets ({first / total:.1%}) and have {have:.1%} of the update; {turn}."


def vote(data: VotePlot) -> theme.Picture:
    """A bar for each name against its due share, and the error of every possible cut."""
    figure = theme.picture(f"who has the vote: cut after {data.cut}, {data.rule}", vote_sentence(data), height=3.8)
    theme.headline(figure, vote_sentence(data))
    bars = theme.panel(figure, (0.085, 0.2, 0.53, 0.58), "Share of the update", y="per cent")
    cloud = theme.panel(
        figure,
        (0.72, 0.2, 0.26, 0.58),
        "Every possible cut",
        x="largest share over due share",
        y="gradient error",
        log=True,
    )
    places, first = np.arange(len(data.names)), np.arange(len(data.names)) < data.cut
    for mask, color, hatch, label in (
        (first, theme.ORANGE, "///", "first microbatch"),
        (~first, theme.SKY, "", "second microbatch"),
    ):
        bars.bar(
            places[mask],
            100 * data.share[mask],
            color=color,
            hatch=hatch,
            edgecolor=theme.BLACK,
            linewidth=0.6,
            label=label,
        )
    due = 100 * data.letters / data.letters.sum()
    bars.step(places, due, where="mid", color=theme.BLACK, linewidth=1.8, label="due: share of the letters")
    few = places if len(places) <= 12 else places[:: max(1, len(places) // 8)]
    bars.set_xticks(few, [data.names[n] for n in few], rotation=40, ha="right", fontsize=theme.TEXT - 1)
    bars.set_ylim(0, max(float(due.max()), float(100 * data.share.max())) * 1.35)
    theme.legend(bars, loc="upper right")
    floor = 1e-8
    cloud.plot(data.imbalance, np.maximum(data.error, floor), "o", color=theme.GREY, markersize=4)
    cloud.plot(
        data.imbalance[data.you],
        max(float(data.error[data.you]), floor),
        "s",
        color=theme.VERMILION,
        markersize=10,
        markerfacecolor="none",
        markeredgewidth=2,
    )
    cloud.annotate(
        "your cut",
        (data.imbalance[data.you], max(float(data.error[data.you]), floor)),
        xytext=(8, -18),
        ha="right",
        textcoords="offset points",
        fontsize=theme.TEXT - 1,
        color=theme.VERMILION,
    )
    cloud.set_xscale("log")
    theme.log_ticks(cloud, "x")
    cloud.set_ylim(
        min(floor / 10, float(np.maximum(data.error, floor).min()) / 10), float(data.error.max()) * 10 + floor
    )
    cloud.margins(x=0.15)
    return figure
