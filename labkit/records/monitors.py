"""Layer by layer: gradient, update and their ratio, measured when asked for. Lessons 07 and 14.

A parameter that no backward pass reached (gradient None) is told apart from one whose gradient is zero: the first is
not part of the loss, the second is part of it and does not move it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from labkit import norms
from labkit.errors import RecordsError
from labkit.records.lines import read_lines

QUANTITIES = ("gradient", "weight", "update", "ratio")


class LayerMonitor:
    """Every so many updates: `before()` once gradients are whole, unscaled and not yet clipped, `after()` once applied.

    every=0 is off: `due` is then always False, nothing is copied and nothing measured. A measured update costs a copy
    of the parameters; reading changes neither parameters, gradients nor random streams.
    """

    def __init__(self, model: nn.Module, every: int) -> None:
        if every < 0:
            raise RecordsError(f"every={every}", "0 (off) or a number of updates")
        self._model, self._every = model, every
        self._snapshot: list[Tensor] | None = None
        self._line: dict[str, Any] = {}

    def due(self, update: int) -> bool:
        """Whether the update that will be number `update` is to be measured."""
        return self._every > 0 and update % self._every == 0

    def before(self) -> None:
        """Measure gradients and weights, and remember the weights."""
        self._line = gradients_by_layer(self._model)
        self._snapshot = norms.snapshot(self._model.parameters())

    def after(self, attempt: int, update: int) -> dict[str, Any]:
        """The line for monitors.jsonl: what `before` saw and how far each layer moved. Raises RecordsError before it.

        layers maps a layer to its 2-norms: gradient (before clipping; null: unused), weight (before the update),
        update, and ratio = update / weight (null for a weight of zero).
        """
        if self._snapshot is None:
            raise RecordsError("after() without before()", "before() in the same update", "call both, or neither")
        moved = norms.layer_norms(self._model, self._snapshot)
        self._snapshot = None
        for name, layer in self._line["layers"].items():
            layer["update"] = moved[name].update
            layer["ratio"] = moved[name].update / layer["weight"] if layer["weight"] else None
        return {"attempt": attempt, "update": update, **self._line}

    def discard(self) -> None:
        """Forget what `before` saw: the attempt was skipped."""
        self._snapshot, self._line = None, {}


def gradients_by_layer(model: nn.Module) -> dict[str, Any]:
    """Gradient and weight norms by layer, and three lists of parameter names, as plain values.

    unused: trained, but no gradient arrived; zero: a gradient arrived and every entry is 0; frozen: not trained.
    first_nonfinite: the first parameter, in the model's order, whose gradient holds a NaN or infinity, or null.
    """
    found = norms.layer_norms(model)
    named = list(model.named_parameters())
    finite = all(layer.gradient is None or np.isfinite(layer.gradient) for layer in found.values())
    return {
        "layers": {name: {"gradient": layer.gradient, "weight": layer.weight} for name, layer in found.items()},
        "unused": [name for name, p in named if p.requires_grad and p.grad is None],
        "zero": [name for name, p in named if p.grad is not None and not p.grad.any()],
        "frozen": [name for name, p in named if not p.requires_grad],
        "first_nonfinite": None if finite else norms.first_nonfinite((name, p.grad) for name, p in named),
    }


def layer_table(path: Path | str) -> tuple[np.ndarray, dict[str, dict[str, np.ndarray]]]:
    """Read monitors.jsonl for plots: the updates, and for each layer one float64 array per quantity.

    What was not measured, such as the gradient of an unused layer, is nan there.
    """
    lines = read_lines(path).records
    layers = dict.fromkeys(name for line in lines for name in line["layers"])
    table = {layer: {quantity: _series(lines, layer, quantity) for quantity in QUANTITIES} for layer in layers}
    return np.array([line["update"] for line in lines], dtype=np.int64), table


def _series(lines: list[dict[str, Any]], layer: str, quantity: str) -> np.ndarray:
    entries: list[Mapping[str, Any]] = [line["layers"].get(layer, {}) for line in lines]
    return np.array([np.nan if e.get(quantity) is None else e[quantity] for e in entries], dtype=np.float64)
