"""Resumed against uninterrupted for several recipes: made when asked for, kept, ready to plot. Lesson 04.

A word of the lesson stands for a piece of labkit.proof.PIECES, or for none ("nothing").
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from labkit.errors import LabkitError
from labkit.lab.plots.resume import ResumePlot, resume_plot, resumed_against_uninterrupted, sentence
from labkit.lab.theme import Picture
from labkit.proof.ablate import REACH
from labkit.proof.rehearse import Rehearsal, Resumed
from labkit.recipe import resolve
from labkit.recipes import find

WORDS: Mapping[str, str] = {
    "optimizer": "optimizer",
    "first moment": "first moment",
    "second moment": "second moment",
    "count": "optimizer counts",
    "schedule": "schedule",
    "generator": "torch stream",
    "cursor": "cursor",
    "epoch": "epoch",
    "buffers": "buffers",
}
"""What the lessons up to 04 have shown, in their words."""

LOG = ("indices", "rate", "loss", "gradient norm")
STATE = {
    "buffers": "buffers",
    "first moment": "optimizer.exp_avg",
    "second moment": "optimizer.exp_avg_sq",
    "count": "optimizer.step",
    "schedule": "schedule",
    "cursor": "cursor.examples",
    "epoch": "cursor.epoch",
    "generator": "rng.torch",
}
RECIPES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "digits conv": ("digits", {"network": "conv", "warmup": 20}),
    "digits mlp": ("digits", {"network": "mlp", "warmup": 20}),
    "names": ("names", {"warmup": 20}),
}
STOPS = (60, 66, 73, 80, 86)
"""Where the runs can be stopped. 20 updates are one epoch of the digits: 60 and 80 are its edges."""


class Resumes:
    """A straight run of each recipe to `attempts` updates, five seeds of it, and its resumes from a few stops.

    recipes: name -> (recipe of labkit, settings). A recipe is trained when it is first asked for. first: the first
    update that a plot shows. Raises LabkitError for a recipe or word that is not offered.
    """

    def __init__(
        self, recipes: Mapping[str, tuple[str, Mapping[str, Any]]] = RECIPES, *, attempts: int = 92,
        stops: Collection[int] = STOPS, first: int = 31, seeds: int = 4,
    ) -> None:  # fmt: skip
        self.recipes, self.attempts, self.stops, self.first, self.seeds = recipes, attempts, tuple(stops), first, seeds
        self._rehearsals: dict[str, Rehearsal] = {}
        self._plots: dict[tuple[str, int, tuple[str, ...]], ResumePlot] = {}

    def rehearsal(self, recipe: str = "digits conv") -> Rehearsal:
        """The straight run of a recipe with its kept states."""
        if recipe not in self.recipes:
            raise LabkitError(f"no recipe {recipe!r}", "one of " + ", ".join(self.recipes))
        if recipe not in self._rehearsals:
            name, settings = self.recipes[recipe]
            config = resolve(find(name), name, {**settings, "updates": self.attempts})
            self._rehearsals[recipe] = Rehearsal(find(name), config, self.attempts, self.stops, seeds=self.seeds)
        return self._rehearsals[recipe]

    def resumed(self, stop: int, lost: Collection[str] = (), recipe: str = "digits conv") -> Resumed:
        """The run continued from a stop without what the words in `lost` stand for."""
        return self.rehearsal(recipe).resumed(stop, [_piece(word) for word in lost])

    def keeps(self, word: str, recipe: str = "digits conv") -> bool:
        """Whether this recipe has such a piece of state at all."""
        return self.rehearsal(recipe).has(_piece(word))

    def prepare(self, recipe: str = "digits conv", lost: Collection[str] = tuple(WORDS)) -> None:
        """Compute the loss of each single piece at every stop, so that a slider finds them ready."""
        for stop in self.stops:
            for word in ("nothing", *(word for word in lost if self.keeps(word, recipe))):
                self.plot(stop, (word,), recipe)

    def plot(self, stop: int, lost: Collection[str] = (), recipe: str = "digits conv") -> ResumePlot:
        """The data of the picture. "nothing", and pieces that the recipe does not keep, are not lost; kept."""
        words = tuple(word for word in WORDS if word in lost and self.keeps(word, recipe))
        unknown = set(lost) - set(WORDS) - {"nothing"}
        if unknown:
            raise LabkitError(f"no piece {min(unknown)!r}", "one of " + ", ".join(WORDS))
        key = (recipe, stop, words)
        if key not in self._plots:
            self._plots[key] = self._made(stop, words, recipe)
        return self._plots[key]

    def draw(self, stop: int, lost: str = "nothing", recipe: str = "digits conv", **also: bool) -> Picture:
        """For lab.Explorer: `also` are tick-boxes by word."""
        return resumed_against_uninterrupted(self.plot(stop, _all(lost, also), recipe))

    def tell(self, stop: int, lost: str = "nothing", recipe: str = "digits conv", **also: bool) -> str:
        """For lab.Explorer: the sentence below the picture."""
        absent = [word for word in WORDS if word in _all(lost, also) and not self.keeps(word, recipe)]
        note = f" {recipe} keeps no {' and no '.join(absent)}: nothing to lose." if absent else ""
        return sentence(self.plot(stop, _all(lost, also), recipe)) + note

    def _made(self, stop: int, words: tuple[str, ...], recipe: str) -> ResumePlot:
        run, resumed = self.rehearsal(recipe), self.resumed(stop, words, recipe)
        straight, shown = run.straight, slice(self.first - 1, None)
        records = straight.records[:stop] + resumed.track.records
        probe = straight.probe[:stop] + resumed.track.probe
        distance = np.concatenate([np.zeros(stop), resumed.distance])[shown]
        band = np.vstack([run.band(), [straight.probe]])[:, shown]
        return resume_plot(
            stop, " and ".join(words) or "nothing", _columns(straight.records[shown], straight.probe[shown]),
            _columns(records[shown], probe[shown]), distance=distance, band=band, first=self.first, log=LOG,
            reach=REACH,
        )  # fmt: skip


def _piece(word: str) -> str:
    if word not in WORDS:
        raise LabkitError(f"no piece {word!r}", "one of " + ", ".join(WORDS))
    return WORDS[word]


def _all(lost: str, also: Mapping[str, bool]) -> set[str]:
    return {lost, *(word for word, ticked in also.items() if ticked)}


def _columns(records: list[dict[str, Any]], probe: list[float]) -> dict[str, list[Any]]:
    """What the picture compares: the log first, then the parts of the state by digest, then the probe loss."""
    found: dict[str, list[Any]] = {
        "indices": [record["indices"] for record in records],
        "rate": [record["rates_used"][0] for record in records],
        "loss": [record["loss_sum"] / record["loss_count"] for record in records],
        "gradient norm": [record["grad_norm"] for record in records],
    }
    present = {word: part for word, part in STATE.items() if part in records[0]}
    found.update({word: [record[part] for record in records] for word, part in present.items()})
    return {**found, "probe": list(probe)}
