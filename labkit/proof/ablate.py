"""Drop exactly one piece of the state at a resume, and answer three questions about it. Lesson 04.

First update and quantity that differ (the detector). Would the loss curve have told you (against the spread over
seeds)? Where does it hurt: training, evaluation only, selection only, or nothing in this recipe?
"""

from __future__ import annotations

import html
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from labkit.config import RunConfig
from labkit.proof.compare import Difference
from labkit.proof.pieces import PIECES
from labkit.proof.rehearse import Rehearsal, Resumed
from labkit.recipe import Recipe, resolve
from labkit.recipes import named

__all__ = ["PIECES", "Ablation", "Loss", "ablate"]


@dataclass(frozen=True)
class Loss:
    """What losing one piece did. kept is False where this recipe has no such piece: then nothing was tried."""

    piece: str
    kept: bool
    difference: Difference | None = None
    leaves_band_at: int | None = None  # attempt whose probe loss leaves the spread of the seeds
    hurts: str = ""  # training, evaluation only, selection only, nothing here
    probe_straight: float | None = None  # at the end
    probe_resumed: float | None = None

    def answers(self) -> tuple[str, str, str]:
        """First difference; whether the loss curve leaves the band of the seeds; where it hurts."""
        if not self.kept:
            return "this recipe keeps no such piece", "", ""
        if self.difference is None:
            return "nothing, in any bit", "there is nothing to tell", self.hurts
        left = "no: it stays in the band of the seeds"
        if self.leaves_band_at is not None:
            left = f"yes: it leaves the band of the seeds at {self.leaves_band_at}"
        return f"{self.difference.quantity}, at update {self.difference.update}", left, self.hurts

    def __str__(self) -> str:
        if not self.kept:
            return f"{self.piece}: this recipe keeps no such piece"
        if self.difference is None:
            return f"{self.piece}: nothing changed, in any bit; this recipe does not use it, or not at this stop"
        noticed = "the loss curve never leaves the band of seeds"
        if self.leaves_band_at is not None:
            noticed = f"the loss curve leaves the band of seeds at {self.leaves_band_at}"
        first = f"{self.difference.quantity} differs first, at update {self.difference.update}"
        return f"{self.piece}: {first}; {noticed}; hurts {self.hurts}"


@dataclass(frozen=True)
class Ablation:
    """One Loss for each piece; also for "nothing", which must be equal in every bit."""

    recipe: str
    stop: int
    attempts: int
    losses: tuple[Loss, ...]

    def __str__(self) -> str:
        head = f"{self.recipe}, stopped after {self.stop} of {self.attempts} attempts; lost at the resume:"
        return "\n".join([head, *(f"  {loss}" for loss in self.losses)])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON and plots."""
        return asdict(self)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{title}</th>" for title in ("lost", *_QUESTIONS))
        rows = "".join(
            "<tr>" + "".join(f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in row) + "</tr>"
            for row in ((loss.piece, *loss.answers()) for loss in self.losses)
        )
        caption = html.escape(str(self).splitlines()[0])
        return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


_QUESTIONS = ("first to differ", "would the loss curve have told you?", "where does it hurt?")


def ablate(
    recipe: str | Recipe, *, stop: int | None = None, pieces: Collection[str] | None = None, seeds: int = 4,
    progress: Callable[[str], None] = lambda text: None, **settings: Any,
) -> Ablation:  # fmt: skip
    """Try every piece (or those named) on a recipe. settings as in start(); updates is the length, in attempts.

    stop: the boundary of the resume; by default two thirds of the way, moved off the epoch's edge.
    Raises ConfigError and relatives for settings that cannot be used.
    """
    found, name = named(recipe)
    config = resolve(found, name, {"updates": 30, **settings})
    assert config.updates is not None
    at = default_stop(found, config, config.updates) if stop is None else stop
    progress("straight run")
    rehearsal = Rehearsal(found, config, config.updates, [at], seeds=seeds)
    band = rehearsal.band() if seeds else np.empty((0, config.updates))
    losses = [_judge(rehearsal.resumed(at), "nothing", rehearsal, band)]
    for piece in pieces or PIECES:
        progress(piece)
        if not rehearsal.has(piece):
            losses.append(Loss(piece, kept=False))
        else:
            losses.append(_judge(rehearsal.resumed(at, [piece]), piece, rehearsal, band))
    return Ablation(name, at, config.updates, tuple(losses))


def default_stop(recipe: Recipe, config: RunConfig, attempts: int) -> int:
    """Two thirds of the way, one further if that is an epoch's edge: there a lost cursor would change nothing."""
    per_epoch = -(-len(recipe.splits(config).train) // config.batch_size)
    stop = max(1, attempts * 2 // 3)
    return stop + 1 if stop % per_epoch == 0 and stop + 1 < attempts else stop


def _judge(resumed: Resumed, piece: str, rehearsal: Rehearsal, band: np.ndarray) -> Loss:
    straight = rehearsal.straight
    probe = np.array(resumed.track.probe)
    whole = np.array(straight.probe)
    expected = whole[resumed.stop :]
    return Loss(
        piece, True, resumed.difference, leaves_band(probe, whole, band, resumed.stop),
        _where(resumed, probe, expected), float(expected[-1]), float(probe[-1]),
    )  # fmt: skip


REACH = 5
"""An eye that looks at a curve does not see single attempts: the band is what the seeds span within so many of them."""


def spread(curves: np.ndarray, reach: int = REACH) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest of several curves, shape (curves, attempts), within `reach` attempts on either side."""
    padded = np.pad(curves, ((0, 0), (reach, reach)), mode="edge")
    near = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1, axis=1)
    return near.min((0, 2)), near.max((0, 2))


def leaves_band(probe: np.ndarray, straight: np.ndarray, band: np.ndarray, stop: int) -> int | None:
    """First attempt after the stop whose probe loss is outside what the seeds, this one too, span; None: never.

    probe: losses after the stop; straight (attempts,) and band (seeds, attempts): from the first attempt on.
    """
    low, high = spread(np.vstack([band, straight[None]]))
    outside = ~((probe >= low[stop:]) & (probe <= high[stop:]))
    return stop + 1 + int(np.argmax(outside)) if outside.any() else None


def _where(resumed: Resumed, probe: np.ndarray, expected: np.ndarray) -> str:
    if resumed.difference is None:
        return "nothing here"
    if resumed.recorded is not None or resumed.distance.any():
        return "training"
    if not np.array_equal(probe, expected):
        return "evaluation only"
    if resumed.difference.quantity.startswith("best"):
        return "selection only"
    return "nothing here"
