"""One update in slow motion: how far each part of the state has moved after each move. Lesson 01."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR

from labkit import randomness
from labkit.lab.plots.moves import MovesPlot
from labkit.order import EpochOrder
from labkit.recipes import digits

OPTIMIZERS = ("AdamW", "SGD with momentum")
MOVES = ("clear", "forward", "backward", "clip", "optimizer", "schedule")
MEMORIES = {"first moment": "exp_avg", "second moment": "exp_avg_sq", "momentum": "momentum_buffer"}
BEFORE, WARMUP, BATCH, MAX_NORM = 7, 12, 64, 1.0


class Bench:
    """A convolution network on the digits, seven updates into a run whose rate still rises."""

    def __init__(self, optimizer: str, clears: bool, seed: int = 0) -> None:
        with randomness.preserved():
            randomness.seed_all("magnify", seed)
            self.model = digits.conv()
        weights = self.model.parameters()
        self.clears = clears
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(weights, lr=0.01)
            if optimizer == "AdamW"
            else torch.optim.SGD(weights, lr=0.1, momentum=0.9)
        )
        self.schedule = LambdaLR(self.optimizer, lambda n: min((n + 1) / WARMUP, 1.0))
        self.data, self.order = digits.load("train"), EpochOrder("randperm", seed, len(digits.load("train")))
        self.updates = 0
        self.loss: Tensor | None = None
        for _ in range(BEFORE):
            for _name, move in self.moves():
                move()

    def moves(self) -> list[tuple[str, Callable[[], object]]]:
        """The named moves of one update, in order; each is to be called once."""
        first = self.updates * BATCH
        images, labels = self.data.__getitems__(self.order.indices(0, first, first + BATCH).tolist())
        self.updates += 1

        def forward() -> None:
            self.loss = cross_entropy(self.model(images), labels)

        def backward() -> None:
            assert self.loss is not None
            self.loss.backward()

        return [
            ("clear", self.optimizer.zero_grad) if self.clears else ("clear (left out)", lambda: None),
            ("forward", forward),
            ("backward", backward),
            ("clip", lambda: clip_grad_norm_(self.model.parameters(), MAX_NORM)),
            ("optimizer", self.optimizer.step),
            ("schedule", self.schedule.step),
        ]

    def parts(self) -> dict[str, Tensor]:
        """Everything an update can move, one flat float64 tensor a part; a gradient that is None counts as zeros."""
        parameters = list(self.model.parameters())
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        found = {"weights": list[Tensor](parameters), "gradient buffer": grads}
        for name, key in MEMORIES.items():
            kept = [self.optimizer.state[p][key] for p in parameters if key in self.optimizer.state[p]]
            if kept:
                found[name] = kept
        found["BatchNorm statistics"] = [b for b in self.model.buffers() if b.is_floating_point()]
        return {name: torch.cat([t.detach().double().flatten() for t in ts]) for name, ts in found.items()}


def magnify(optimizer: str = "AdamW", clears: bool = True) -> list[MovesPlot]:
    """Update number 8 really made, move by move; one entry for each of MOVES, ready for plots.update_moves.

    optimizer: one of OPTIMIZERS. clears: whether the gradients are cleared, in this update and the seven before it.
    """
    bench = Bench(optimizer, clears)
    names, distance, before, after = [], [], [], []
    old = bench.parts()
    for name, move in bench.moves():
        move()
        new = bench.parts()
        names.append(name)
        distance.append([float((new[part] - old[part]).norm()) for part in new])
        before.append([float(old[part].norm()) for part in new])
        after.append([float(new[part].norm()) for part in new])
        old = new
    base = 0.01 if optimizer == "AdamW" else 0.1
    rates = np.array([base * min((n + 1) / WARMUP, 1.0) for n in range(16)])
    first = MovesPlot(
        names, list(old), np.array(distance), np.array(before), np.array(after), 0, rates, BEFORE, BEFORE + 1, False
    )
    return [replace(first, shown=n, moved_on=n == len(names) - 1) for n in range(len(names))]
