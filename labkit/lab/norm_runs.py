"""The same training run under many clip thresholds at once, with an event planted in the middle. Lesson 07.

The digits network has one copy for each threshold; all copies see the same batches and the same dropout mask in one
pass, and each clips by its own norm. That makes real runs quick enough for a slider.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from labkit import randomness
from labkit.lab.plots.norms import NormsPlot
from labkit.recipes import digits

OPTIMIZERS = ("AdamW", "SGD")
EVENTS = ("none", "spike", "NaN", "infinity", "frozen layer")
THRESHOLDS = (1e-8, 1e-6, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0)
UPDATES, AT, EVAL_EVERY, HIDDEN, BATCH = 150, 75, 5, 64, 64


@dataclass(frozen=True, eq=False)
class Runs:
    """norm, length: (thresholds + 1, updates); loss: (thresholds + 1, evaluations). The last row is not clipped."""

    norm: np.ndarray
    length: np.ndarray
    loss: np.ndarray


class Copies:
    """The two layers of digits.mlp, once for each threshold: weights (copies, out, in), biases (copies, out)."""

    def __init__(self, copies: int, seed: int) -> None:
        randomness.seed_all("norm runs", seed)
        start = [p.detach() for p in digits.mlp().parameters()]
        self.parameters = [p.expand(copies, *p.shape).clone().requires_grad_() for p in start]

    def scores(self, pixels: Tensor, mask: Tensor | None = None) -> Tensor:
        """(copies, images, classes) from pixels (images, 64)."""
        first, first_bias, second, second_bias = self.parameters
        inputs = pixels.expand(len(first), *pixels.shape)
        hidden = torch.baddbmm(first_bias[:, None], inputs, first.transpose(1, 2)).relu()
        hidden = hidden if mask is None else hidden * mask
        return torch.baddbmm(second_bias[:, None], hidden, second.transpose(1, 2))

    def losses(self, pixels: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mean loss of each copy."""
        scores = self.scores(pixels, mask)
        every = labels.expand(len(scores), -1).flatten()
        return nn.functional.cross_entropy(scores.flatten(0, 1), every, reduction="none").view(len(scores), -1).mean(1)


def run(optimizer: str, event: str = "none", guard: bool = False, seed: int = 0) -> Runs:
    """150 attempts with an event at number 75; guard: an attempt with a gradient that is not finite moves nothing.

    spike: the pixels of the batch times 100; NaN, infinity: one entry of the gradient; frozen layer: from there on the
    first layer gets no gradient. The caller's random streams are left as they were.
    """
    with randomness.preserved():
        return _run(optimizer, event, guard, seed)


def _run(optimizer: str, event: str, guard: bool, seed: int) -> Runs:
    limits = torch.tensor([*THRESHOLDS, math.inf])
    copies, data, held = Copies(len(limits), seed), digits.load("train"), digits.load("validation")
    moves = _optimizer(optimizer)(copies.parameters)
    norm: list[np.ndarray] = []
    length: list[np.ndarray] = []
    loss: list[np.ndarray] = []
    for update, rows in enumerate(_batches(len(data), seed), start=1):
        pixels = data.images[rows].flatten(1) * (100.0 if event == "spike" and update == AT else 1.0)
        mask = nn.functional.dropout(torch.ones(len(rows), HIDDEN), 0.2)
        moves.zero_grad()
        copies.losses(pixels, data.labels[rows], mask).sum().backward()
        _plant(copies.parameters, event, update)
        found = _by_copy([p.grad for p in copies.parameters if p.grad is not None])
        norm.append(found.numpy())
        before = [p.detach().clone() for p in copies.parameters]
        _clip(copies.parameters, found, limits)
        if not guard or bool(found.isfinite().all()):
            moves.step()
        length.append(_by_copy([p.detach() - b for p, b in zip(copies.parameters, before, strict=True)]).numpy())
        if update % EVAL_EVERY == 0:
            with torch.no_grad():
                loss.append(copies.losses(held.images.flatten(1), held.labels).numpy())
    return Runs(np.array(norm).T, np.array(length).T, np.array(loss).T)


def _optimizer(name: str) -> Callable[[list[Tensor]], torch.optim.Optimizer]:
    if name == "AdamW":
        return lambda parameters: torch.optim.AdamW(parameters, lr=0.003, weight_decay=0.01)
    return lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def _batches(examples: int, seed: int) -> list[Tensor]:
    generator = randomness.torch_generator("norm runs", seed)
    epochs = -(-UPDATES // -(-examples // BATCH))
    batches = [rows for _ in range(epochs) for rows in torch.randperm(examples, generator=generator).split(BATCH)]
    return batches[:UPDATES]


def _plant(parameters: list[Tensor], event: str, update: int) -> None:
    if event in ("NaN", "infinity") and update == AT:
        assert parameters[0].grad is not None
        parameters[0].grad[:, 3, 20] = math.nan if event == "NaN" else math.inf
    if event == "frozen layer" and update >= AT:
        parameters[0].grad = parameters[1].grad = None


def _by_copy(tensors: list[Tensor]) -> Tensor:
    """The 2-norm of each copy over all tensors."""
    return torch.stack([tensor.flatten(1).norm(dim=1) for tensor in tensors]).norm(dim=0)


def _clip(parameters: list[Tensor], norm: Tensor, limits: Tensor) -> None:
    """As torch.nn.utils.clip_grad_norm_, each copy by its own norm and limit."""
    factor = torch.where(limits.isinf(), torch.ones(()), (limits / (norm + 1e-6)).clamp(max=1.0))
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad *= factor.view(-1, *[1] * (parameter.dim() - 1))


def plotted(runs: Runs, threshold: float, optimizer: str, event: str = "none", guard: bool = False) -> NormsPlot:
    """One threshold of the runs beside the run that was not clipped, as the picture wants it."""
    row = THRESHOLDS.index(threshold)
    updates = np.arange(1, UPDATES + 1)
    return NormsPlot(
        updates, runs.norm[row], threshold, runs.length[row], runs.length[-1], updates[EVAL_EVERY - 1 :: EVAL_EVERY],
        runs.loss[row], runs.loss[-1], optimizer, event + (", guarded" if guard else ""),
    )  # fmt: skip
