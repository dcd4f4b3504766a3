"""Norm before clipping, length of the update, validation loss: one threshold, three answers. Lesson 07."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.lab import theme


@dataclass(frozen=True, eq=False)
class NormsPlot:
    """updates: counted from 1; norm: before clipping; length: 2-norm of each update; loss: validation loss at loss_at.

    plain_length, plain_loss: the same run without clipping. optimizer, event: in words; event "none": nothing planted.
    guess: how many times slower someone expected the clipped run to learn, or None.
    """

    updates: np.ndarray
    norm: np.ndarray
    threshold: float
    length: np.ndarray
    plain_length: np.ndarray
    loss_at: np.ndarray
    loss: np.ndarray
    plain_loss: np.ndarray
    optimizer: str
    event: str = "none"
    guess: float | None = None


def norms_sentence(data: NormsPlot) -> str:
    """How many updates were clipped and what became of their length; or from where on the weights are lost."""
    norm = data.norm
    clipped = int((norm > data.threshold).sum())
    many = f"all {len(norm)}" if clipped == len(norm) else f"{clipped or 'none'} of {len(norm)}"
    start = f"{data.optimizer}: {many} updates clipped; "
    bad = ~np.isfinite(norm)
    if not np.isfinite(data.loss[-1]):
        return start + f"update {data.updates[bad][0]} was not finite, and the weights are lost from there on."
    both = np.isfinite(data.length) & np.isfinite(data.plain_length)
    mean, plain = float(data.length[both].mean()), float(data.plain_length[both].mean())
    change = mean / plain - 1 if plain else 0.0
    if abs(change) < 0.005:
        effect = "the mean length of an update stayed the same"
    elif change < -0.5:
        effect = (
            f"the mean length of an update fell to 1/{plain / max(mean, 1e-30):,.{0 if plain > 100 * mean else 1}f}"
        )
    else:
        effect = f"the mean length of an update changed by {change:+.1%}"
    skipped = f"; attempt {data.updates[bad][0]} was not finite and was skipped" if bad.any() else ""
    losses = f"validation loss {data.loss[-1]:.3g} against {data.plain_loss[-1]:.3g} unclipped"
    return f"{start}{effect}; {losses}{skipped}."


def norms(data: NormsPlot) -> theme.Picture:
    """Norm before clipping with the threshold; length of the update; validation loss."""
    name = f"gradient norms: {data.optimizer}, threshold {data.threshold:g}, event {data.event}"
    figure = theme.picture(name, norms_sentence(data), height=4.6)
    theme.headline(figure, norms_sentence(data))
    before = theme.panel(figure, (0.085, 0.51, 0.9, 0.34), "Gradient norm before clipping", y="2-norm", log=True)
    length = theme.panel(figure, (0.085, 0.105, 0.42, 0.27), "Length of the update", x="update", y="2-norm", log=True)
    loss = theme.panel(figure, (0.6, 0.105, 0.385, 0.27), "Validation loss", x="update", y="nats", log=True)
    finite = np.isfinite(data.norm)
    before.plot(data.updates, np.where(finite, data.norm, np.nan), color=theme.BLUE, linewidth=1.4, label="norm")
    if (~finite).any():
        top = np.full(int((~finite).sum()), float(np.nanmax(np.where(finite, data.norm, np.nan))) * 2)
        before.plot(data.updates[~finite], top, "X", color=theme.BLACK, markersize=9, markevery=6, label="not finite")
    before.axhline(
        data.threshold, color=theme.VERMILION, linestyle="--", linewidth=1.8, label=f"threshold {data.threshold:g}"
    )
    theme.legend(before, loc="upper right", ncols=3)
    theme.fit(before, data.norm, np.array([data.threshold]), above=30)
    plain, clipped = dict(theme.STRAIGHT.style(len(data.updates))), theme.RESUMED.style(len(data.updates), filled=False)
    length.plot(data.updates, data.plain_length, **{**plain, "linewidth": 3.5, "marker": ""})
    visible = np.isfinite(data.length) & (data.length > 0)
    length.plot(data.updates, np.where(visible, data.length, np.nan), **clipped)
    loss.plot(
        data.loss_at,
        data.plain_loss,
        label="unclipped",
        **{**theme.STRAIGHT.style(len(data.loss_at)), "linewidth": 3.5},
    )
    loss.plot(data.loss_at, data.loss, label="clipped", **theme.RESUMED.style(len(data.loss_at), filled=False))
    if data.guess is not None:
        slower = np.interp(data.loss_at / data.guess, data.loss_at, data.plain_loss)
        loss.plot(data.loss_at, slower, color=theme.PURPLE, linestyle=":", linewidth=2.4, label="your guess")
    theme.fit(length, data.plain_length, data.length, below=4, above=4)
    theme.fit(loss, data.plain_loss, data.loss, below=1.3, above=2)
    theme.legend(loss, loc="upper right")
    return figure
