"""What one process writes about its run: trajectory, signals, monitors, samples, incidents, mirror. Lesson 10."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch

from labkit.config import RunConfig
from labkit.device import peak_memory_bytes
from labkit.engine import Evaluation
from labkit.loop import Attempt
from labkit.records.lines import LineLog
from labkit.records.tensorboard import Mirror
from labkit.run.folder import RunFolder
from labkit.state import RunState

SIGNAL_SECONDS = 5.0
"""A line of signals is due after so long, however slow an attempt is: more is not unknown after a kill."""

_LINE = tuple(name for name in Attempt.__dataclass_fields__ if name not in {"tally", "layers"})


class Journal:
    """The open record files of a run folder; one line for each thing that happened, in the order in which it did.

    seconds: how long the run had worked when this segment began.
    """

    def __init__(self, folder: RunFolder, config: RunConfig, state: RunState, segment: int, seconds: float) -> None:
        self.folder, self.segment = folder, segment
        self._state = state
        self._trajectory, self._signals = LineLog(folder.trajectory), LineLog(folder.signals)
        self._since = (seconds, state.counters.examples, state.counters.tokens)
        self._tally: dict[str, int] = {}
        self._mirror: Mirror | None = None
        if config.tensorboard:
            self._mirror = Mirror(folder.tensorboard, state.counters.committed if segment else None)

    def attempt(self, record: Attempt, config: RunConfig) -> None:
        """An attempt's line in the trajectory, its layers in the monitors, its place in the mirror."""
        line = {name: getattr(record, name) for name in _LINE}
        line["segment"] = self.segment
        if record.tally is not None:
            line["tally"] = record.tally
            for name, count in record.tally.items():
                self._tally[name] = self._tally.get(name, 0) + count
        self._write(line)
        if record.layers is not None:
            with LineLog(self.folder.monitors) as log:
                log.append(record.layers)
        every = config.histograms_every
        if self._mirror is not None and every and record.skipped is None and record.update % every == 0:
            self._mirror.histograms(self._state.model, record.update)

    def evaluation(self, found: Evaluation) -> None:
        """An evaluation's totals and what was decided from them."""
        self._write({
            "attempt": found.attempt, "update": found.update, "segment": self.segment,
            "validation": {name: [total.sum, total.count] for name, total in found.totals.items()},
            "best": found.best, "without_improvement": found.without_improvement, "rates_next": list(found.rates_next),
        })  # fmt: skip

    def samples(self, found: Iterable[Mapping[str, Any]]) -> None:
        """Qualitative outputs of the present weights."""
        counters = self._state.counters
        with LineLog(self.folder.samples) as log:
            for sample in found:
                log.append({"attempt": counters.attempted, "update": counters.committed, **sample})

    def incident(self, attempt: int, why: str, checkpoint: int | None, indices: str | None = None) -> None:
        """Where to look later: replay goes from the pinned checkpoint (its update) to this attempt."""
        with LineLog(self.folder.incidents) as log:
            log.append({
                "attempt": attempt, "update": self._state.counters.committed, "segment": self.segment,
                "epoch": self._state.cursor.epoch, "indices": indices, "why": why, "checkpoint": checkpoint,
            })  # fmt: skip

    def signal_due(self, record: Attempt, config: RunConfig, seconds: float) -> bool:
        """Whether a line of signals is due after this attempt."""
        every = config.signals_every
        return bool(every) and (record.attempt % every == 0 or seconds - self._since[0] >= SIGNAL_SECONDS)

    def signal(self, record: Attempt, config: RunConfig, seconds: float, stage_seconds: Mapping[str, float]) -> None:
        """What belongs to the clock and the machine, since the last such line."""
        then, examples, tokens = self._since
        passed = max(seconds - then, 1e-9)
        line: dict[str, Any] = {
            "attempt": record.attempt, "update": record.update, "segment": self.segment, "seconds": seconds,
            "examples_per_second": (record.examples - examples) / passed,
            "tokens_per_second": (record.tokens - tokens) / passed,
            "peak_memory_bytes": peak_memory_bytes(torch.device(config.device)),
        }  # fmt: skip
        if stage_seconds:
            line["stage_seconds"] = dict(stage_seconds)
        if self._tally:
            line["tally"], self._tally = self._tally, {}
        self._signals.append(line)
        self._since = (seconds, record.examples, record.tokens)

    def flush(self) -> None:
        """Everything to disk: a checkpoint never knows more than the records."""
        self._trajectory.flush(durable=True)
        self._signals.flush(durable=True)
        if self._mirror is not None:
            self._mirror.flush()

    def close(self) -> None:
        """Close every file, also when one of them refuses."""
        with ExitStack() as stack:
            stack.callback(self._signals.close)
            stack.callback(self._trajectory.close)
            if self._mirror is not None:
                stack.callback(self._mirror.close)

    def _write(self, line: dict[str, Any]) -> None:
        self._trajectory.append(line)
        if self._mirror is not None:
            self._mirror.write(line)
