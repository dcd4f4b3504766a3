"""The small recipe of the exercises of lesson 04: BatchNorm, dropout, AdamW, a warm-up, an average, a keyed order."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

from labkit import order, randomness

EXAMPLES, BATCH, WARMUP, DECAY = 40, 8, 20, 0.9
Record = dict[str, Any]
State = dict[str, Any]


@dataclass
class Run:
    """All that a run carries besides the generator; average: name -> weight; cursor: examples of this epoch."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: LambdaLR
    average: dict[str, Tensor]
    epoch: int = 0
    cursor: int = 0
    update: int = 0


class Workshop:
    """Builds the parts of a run, advances it by one update, saves its state. rate: the rate after the warm-up."""

    def __init__(self, seed: int = 0, rate: float = 0.01) -> None:
        self.seed, self.rate = seed, rate
        generator = randomness.torch_generator("workshop", seed)
        self.inputs = torch.randn(EXAMPLES, 6, generator=generator)
        self.targets = torch.randint(3, (EXAMPLES,), generator=generator)

    def model(self) -> nn.Module:
        """A new network; building it draws from torch's global generator."""
        return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.rate)

    def schedule(self, optimizer: torch.optim.Optimizer) -> LambdaLR:
        """A warm-up; building it writes the first rate into the optimizer."""
        return LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / WARMUP))

    def start(self) -> Run:
        """A new run at update 0."""
        randomness.seed_all("workshop start", self.seed)
        model = self.model()
        optimizer = self.optimizer(model)
        average = {name: p.detach().clone() for name, p in model.named_parameters()}
        return Run(model, optimizer, self.schedule(optimizer), average)

    def save(self, run: Run) -> State:
        """A copy of everything that has to come back."""
        return copy.deepcopy(
            {
                "model": run.model.state_dict(),
                "optimizer": run.optimizer.state_dict(),
                "schedule": run.schedule.state_dict(),
                "average": run.average,
                "epoch": run.epoch,
                "cursor": run.cursor,
                "update": run.update,
                "random": torch.get_rng_state(),
            }
        )

    def indices(self, epoch: int, cursor: int) -> np.ndarray:
        return order.EpochOrder("randperm", self.seed, EXAMPLES).indices(epoch, cursor, min(cursor + BATCH, EXAMPLES))

    def advance(self, run: Run) -> Record:
        """One update; returns what was recorded of it."""
        which = self.indices(run.epoch, run.cursor)
        rate = run.optimizer.param_groups[0]["lr"]
        run.model.train()
        run.optimizer.zero_grad()
        loss = cross_entropy(run.model(self.inputs[which]), self.targets[which])
        loss.backward()
        run.optimizer.step()
        run.schedule.step()
        with torch.no_grad():
            for name, p in run.model.named_parameters():
                run.average[name].mul_(DECAY).add_(p, alpha=1 - DECAY)
        run.update += 1
        run.cursor += len(which)
        if run.cursor >= EXAMPLES:
            run.epoch, run.cursor = run.epoch + 1, 0
        weights = torch.cat([p.detach().flatten() for p in run.model.parameters()])
        return {
            "indices": tuple(int(i) for i in which),
            "rate": rate,
            "loss": float(loss.detach()),
            "parameters": tuple(weights.tolist()),
            "evaluated": self.evaluated(run),
            "evaluated average": self.evaluated(run, averaged=True),
        }

    def evaluated(self, run: Run, averaged: bool = False) -> float:
        """Loss of all examples in eval mode, by the weights or by their average."""
        run.model.eval()
        weights = run.average if averaged else {}
        with torch.no_grad():
            logits = torch.func.functional_call(run.model, weights, (self.inputs,))
        return float(cross_entropy(logits, self.targets))


def equal(a: Any, b: Any) -> bool:
    """Equal in every bit, through dictionaries, lists and tensors."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)
