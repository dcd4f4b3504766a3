"""A straight run kept in memory, and resumes from it with pieces of the state left out. Lessons 00 and 04."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from labkit.config import RunConfig
from labkit.engine import Engine, open_engine
from labkit.errors import ProofError
from labkit.evaluate import carrying_average, evaluate
from labkit.loop import Attempt
from labkit.proof.compare import Difference, first_difference
from labkit.proof.pieces import PIECES
from labkit.recipe import Recipe
from labkit.state import Saved, cloned, digests

PROBE_EXAMPLES = 256


@dataclass
class Track:
    """What one run did at each boundary after the first: parallel lists."""

    records: list[dict[str, Any]]  # attempt records with the digests of every part
    probe: list[float]  # mean loss of the fixed probe set in eval mode, with the weights that the config evaluates
    parameters: list[np.ndarray]  # all trainable parameters, flat

    @property
    def attempts(self) -> list[int]:
        return [record["attempt"] for record in self.records]

    def rates(self) -> np.ndarray:
        """Used rate of the first parameter group."""
        return np.array([record["rates_used"][0] for record in self.records])


@dataclass(frozen=True)
class Resumed:
    """A run continued from `stop` without the pieces `lost`, beside the straight run."""

    stop: int
    lost: tuple[str, ...]
    track: Track
    difference: Difference | None  # recorded quantities and digests of every part
    recorded: Difference | None  # recorded quantities alone: what a log would show
    distance: np.ndarray  # 2-norm between the parameters, after each attempt
    equal: np.ndarray  # bool: every recorded bit of the attempt equal


class Rehearsal:
    """The straight run of a config to a number of attempts, with the state kept at every stop asked for.

    seeds: further seeds whose probe losses give the band against which a difference is judged by eye.
    """

    def __init__(
        self, recipe: Recipe, config: RunConfig, attempts: int, stops: Collection[int], *, seeds: int = 4,
        probe_examples: int = PROBE_EXAMPLES,
    ) -> None:  # fmt: skip
        outside = [stop for stop in stops if not 0 <= stop < attempts]
        if outside:
            raise ProofError(f"a stop at {outside[0]}", f"0 to {attempts - 1}: before the target", "choose another")
        self.recipe, self.config, self.attempts = recipe, config, attempts
        self._probe_examples = probe_examples
        self._saved: dict[int, Saved] = {}
        self._kept: dict[tuple[int, tuple[str, ...]], Resumed] = {}
        with open_engine(recipe, config) as engine:
            self._fresh = engine.capture()
            with engine.working():
                self.start_probe = self._probe(engine)
            self.straight = self._follow(engine, attempts, stops)
        self._seed_configs = [config.changed(seed=config.seed + 1 + k) for k in range(seeds)]
        self._band: np.ndarray | None = None

    def resumed(self, stop: int, lost: Collection[str] = ()) -> Resumed:
        """Continue from a stop in new objects, without some pieces (names of PIECES). Results are kept.

        Raises ProofError for a stop that was not asked for, an unknown piece, or one that this recipe does not have.
        """
        key = (stop, tuple(sorted(lost)))
        if key not in self._kept:
            self._kept[key] = self._resume(stop, tuple(lost))
        return self._kept[key]

    def band(self) -> np.ndarray:
        """Probe losses of the other seeds, shape (seeds, attempts). Computed at the first call."""
        if self._band is None:
            rows = []
            for config in self._seed_configs:
                with open_engine(self.recipe, config) as engine:
                    rows.append(self._follow(engine, self.attempts, (), digest=False).probe)
            self._band = np.array(rows).reshape(len(rows), self.attempts)
        return self._band

    def has(self, piece: str) -> bool:
        """Whether this recipe keeps such a piece at all."""
        stop = next(iter(self._saved))
        return PIECES[piece](cloned(self._saved[stop]), cloned(self._fresh))

    def _resume(self, stop: int, lost: tuple[str, ...]) -> Resumed:
        if stop not in self._saved:
            raise ProofError(f"no state was kept at {stop}", f"one of {sorted(self._saved)}", "name it as a stop")
        saved = cloned(self._saved[stop])
        for name in lost:
            if name not in PIECES:
                raise ProofError(f"there is no piece called {name!r}", "one of " + ", ".join(PIECES), "")
            if not PIECES[name](saved, cloned(self._fresh)):
                raise ProofError(f"this recipe keeps no {name}", "a piece that it has", "see Rehearsal.has()")
        if lost and digests(saved) == digests(self._saved[stop]):  # what was put back is what was there
            return replace(self.resumed(stop), lost=lost)
        with open_engine(self.recipe, self.config) as engine:
            engine.restore(saved)
            track = self._follow(engine, self.attempts - stop, (), first=stop)
        straight = self.straight.records[stop:]
        logged = set(Attempt.__dataclass_fields__)
        plain = [{n: v for n, v in r.items() if n in logged or n == "attempt"} for r in track.records]
        expected = [{n: v for n, v in r.items() if n in logged or n == "attempt"} for r in straight]
        plain, expected = _aligned(plain, stop), _aligned(expected, stop)
        distance = np.array([
            float(np.linalg.norm((a - b).astype(np.float64)))
            for a, b in zip(self.straight.parameters[stop:], track.parameters, strict=True)
        ])  # fmt: skip
        equal = np.array([
            all(repr(a.get(n)) == repr(b.get(n)) for n in a) for a, b in zip(straight, track.records, strict=True)
        ])  # fmt: skip
        difference = first_difference(_aligned(straight, stop), _aligned(track.records, stop))
        return Resumed(stop, lost, track, difference, first_difference(expected, plain), distance, equal)

    def _follow(
        self, engine: Engine, attempts: int, stops: Collection[int], *, first: int = 0, digest: bool = True
    ) -> Track:
        track = Track([], [], [])
        if first in stops:
            self._saved[first] = engine.capture()
        for number in range(first + 1, first + attempts + 1):
            with engine.working():
                engine.evaluate_if_due()
                record = asdict(engine.update())
                engine.evaluate_if_due()
                saved = engine.state.capture() if digest or number in stops else {}
                if saved:
                    record.update(digests(saved))
                if number in stops:
                    self._saved[number] = cloned(saved)
                track.probe.append(self._probe(engine))
            track.records.append(record)
            track.parameters.append(_flat(engine))
        return track

    def _probe(self, engine: Engine) -> float:
        """Inside working()."""
        examples = torch.utils.data.Subset(
            engine.parts.splits.train, range(min(self._probe_examples, len(engine.parts.splits.train)))
        )
        state = engine.state
        with carrying_average(state, self.recipe, self.config, engine.parts.splits.train):
            totals = evaluate(
                state.model, self.recipe, examples, batch_size=self._probe_examples, device=self.config.device,
                autocast=state.precision.autocast,
            )  # fmt: skip
        assert totals is not None  # nothing told it to stop
        return totals["loss"].mean


def _aligned(records: list[dict[str, Any]], stop: int) -> list[dict[str, Any]]:
    """Records numbered from the stop on: a run that lost its counters still has a first attempt after the resume."""
    return [{**record, "attempt": stop + 1 + place} for place, record in enumerate(records)]


def _flat(engine: Engine) -> np.ndarray:
    parts = [p.detach().reshape(-1).float().cpu() for p in engine.state.model.parameters() if p.requires_grad]
    return torch.cat(parts).numpy().copy()
