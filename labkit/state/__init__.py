"""Everything that must survive a stop, under one name. If the loop can change it, it is here. Lessons 01 and 04.

capture() gives plain values and tensors that restricted loading accepts; restore() checks all of it against the live
objects before it changes any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import nn

from labkit import randomness
from labkit.ema import Ema
from labkit.errors import EmaError, StateError
from labkit.order import Cursor
from labkit.precision import Precision
from labkit.schedule import Schedule
from labkit.state.model import (
    OTHER,
    KeptBuffer,
    architecture,
    bare,
    capture_model,
    check_model,
    kept_buffers,
    load_model,
    put_back,
)
from labkit.state.optimizer import capture_optimizer, prepared_optimizer
from labkit.state.saved import Saved, cloned, digests, leaf_bytes, leaves

__all__ = [
    "PARTS", "Best", "Counters", "KeptBuffer", "RunState", "Saved", "architecture", "bare", "capture_model",
    "capture_optimizer", "check_model", "cloned", "digests", "kept_buffers", "leaf_bytes", "leaves", "load_model",
    "prepared_optimizer", "put_back",
]  # fmt: skip

PARTS = ("model", "optimizer", "schedule", "scaler", "ema", "counters", "cursor", "best", "rng", "stateful")
"""The parts of a saved state, in the order in which restore() puts them back; random streams last."""


@dataclass
class Counters:
    """How far the run has come. Every counter has its own unit; none is called a step."""

    attempted: int = 0  # attempts at an update, whatever became of them
    committed: int = 0  # updates that moved the parameters
    skipped: int = 0  # attempts that the guard refused
    scaler_skipped: int = 0  # attempts that the fp16 scaler skipped
    empty: int = 0  # attempts without any valid target
    skips_in_a_row: int = 0
    scaler_skips_in_a_row: int = 0
    examples: int = 0  # examples of committed updates
    tokens: int = 0  # valid targets of committed updates
    evaluations: int = 0
    evaluated_update: int = 0  # the committed update of the last finished evaluation


@dataclass
class Best:
    """The best evaluation so far. None is the only value that means "not set"."""

    value: float | None = None
    update: int | None = None
    without_improvement: int = 0  # evaluations in a row


@dataclass
class RunState:
    """The live objects and counters of one run: the only thing that is saved."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    precision: Precision
    ema: Ema | None = None
    counters: Counters = field(default_factory=Counters)
    cursor: Cursor = field(default_factory=lambda: Cursor(0, 0))
    best: Best = field(default_factory=Best)
    generators: Mapping[str, torch.Generator | np.random.Generator] = field(default_factory=dict)
    stateful: Mapping[str, Any] = field(default_factory=dict)
    devices: tuple[torch.device, ...] = ()

    def capture(self) -> Saved:
        """All of it as tensors and plain values. Tensors are references to live ones: save or clone before moving on.

        Raises EmaError while the model carries the average: its own weights are elsewhere then.
        """
        if self.ema is not None and self.ema.lent:
            raise EmaError("the model carries the average", "its own weights", "save after the evaluation")
        return {
            "model": capture_model(self.model),
            "optimizer": capture_optimizer(self.model, self.optimizer),
            "schedule": self.schedule.state_dict(),
            "scaler": self.precision.state_dict(),
            "ema": self.ema.state_dict() if self.ema else None,
            "counters": asdict(self.counters),
            "cursor": {"epoch": self.cursor.epoch, "examples": self.cursor.examples},
            "best": asdict(self.best),
            "rng": randomness.capture(self.generators, self.devices),
            "stateful": {name: thing.state_dict() for name, thing in self.stateful.items()},
        }

    def restore(self, saved: Saved) -> None:
        """Put a saved state into the live objects: model, optimizer, schedule, then the rest, random streams last.

        Raises StateError or a relative, naming the part, before any live object has changed.
        """
        missing = [part for part in PARTS if part not in saved]
        if missing:
            raise StateError(f"the saved state lacks {', '.join(missing)}", "all of " + ", ".join(PARTS), OTHER)
        check_model(self.model, saved["model"])
        ready = prepared_optimizer(self.model, self.optimizer, saved["optimizer"])
        if (saved["ema"] is None) != (self.ema is None):
            raise StateError("the weight average is on one side only", "the same ema_decay as at the start", OTHER)
        if set(saved["stateful"]) != set(self.stateful):
            raise StateError(
                f"saved stateful objects {sorted(saved['stateful'])}",
                f"{sorted(self.stateful)}",
                "see Recipe.stateful()",
            )
        self.schedule.check_state(saved["schedule"])
        self.precision.check_state(saved["scaler"])
        if self.ema is not None:
            self.ema.check_state(saved["ema"])
        counters, best = _plain(Counters, saved["counters"]), _plain(Best, saved["best"])
        cursor = _plain(Cursor, saved["cursor"])
        randomness.check(saved["rng"], self.generators, self.devices)

        load_model(self.model, saved["model"])
        self.optimizer.load_state_dict(ready)
        self.schedule.load_state_dict(saved["schedule"])
        self.precision.load_state_dict(saved["scaler"])
        if self.ema:
            self.ema.load_state_dict(saved["ema"])
        self.counters, self.best, self.cursor = counters, best, cursor
        for name, thing in self.stateful.items():
            thing.load_state_dict(saved["stateful"][name])
        randomness.restore(saved["rng"], self.generators, self.devices)


def _plain(kind: type, saved: Mapping[str, Any]) -> Any:
    names = {item.name for item in fields(kind)}
    if set(saved) != names:
        raise StateError(f"the saved {kind.__name__.lower()} hold {sorted(saved)}", f"{sorted(names)}", OTHER)
    return kind(**saved)
