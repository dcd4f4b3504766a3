"""The run and the batches on which the guard exercise of lesson 07 works."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from labkit import randomness

CAP = 3


@dataclass
class Guarded:
    """A run with its counters. loss(batch) is the loss; average_update() moves the average; cursor counts examples."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: LambdaLR
    average: dict[str, Tensor] = field(default_factory=dict)
    attempted: int = 0
    committed: int = 0
    cursor: int = 0
    refused_in_a_row: int = 0
    max_refused: int = CAP

    def loss(self, batch: Tensor) -> Tensor:
        """Mean length of the outputs over rows with a positive first entry; a root: its slope at zero is infinite."""
        out = self.model(batch).square().sum(1)
        return torch.where(batch[:, 0] > 0, out.sqrt(), out * 0).mean()

    def average_update(self) -> None:
        """Move the average towards the model by a tenth."""
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                self.average[name].mul_(0.9).add_(p, alpha=0.1)


def scene(seed: int = 0) -> Guarded:
    """A run two committed updates old."""
    randomness.seed_all("check guard", seed)
    model = nn.Linear(4, 2, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    run = Guarded(model, optimizer, LambdaLR(optimizer, lambda n: (n + 1) / 10))
    run.average = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(2):
        batch = good(seed)
        optimizer.zero_grad()
        run.loss(batch).backward()
        optimizer.step()
        run.schedule.step()
        run.average_update()
        run.attempted, run.committed, run.cursor = run.attempted + 1, run.committed + 1, run.cursor + len(batch)
    optimizer.zero_grad()
    return run


def good(seed: int = 0) -> Tensor:
    """A batch whose loss and gradient are finite."""
    return torch.randn(6, 4, generator=randomness.torch_generator("good batch", seed)).abs() + 0.1


def root_at_zero(seed: int = 0) -> Tensor:
    """A batch whose loss is finite and whose gradient is NaN: a masked row at which the root has an infinite slope."""
    batch = good(seed)
    batch[2] = 0.0
    return batch


def infinite(seed: int = 0) -> Tensor:
    """A batch whose loss is not finite."""
    batch = good(seed)
    batch[1, 1] = float("inf")
    return batch
