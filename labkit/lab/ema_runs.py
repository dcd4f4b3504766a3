"""A training run kept as the trail of its weights, and any average computed from it afterwards. Lesson 06.

An average never changes the training that it watches. So the run is made once, and each setting of a slider only
averages its trail again: the same numbers that an average kept along the way would have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from labkit import randomness
from labkit.lab.plots.average import AveragePlot, made_of
from labkit.recipes import digits

DECAYS = (0.9, 0.98, 0.99, 0.999, 0.9999)
LOST = ("nothing", "average", "count")
UPDATES, STOP, LOOK_EVERY = 300, 150, 5
CALM, NOISY = ("calm: rate .003, batches of 64", "noisy: rate .03, batches of 16")
TRAININGS = {CALM: (0.003, 64), NOISY: (0.03, 16)}


@dataclass(frozen=True, eq=False)
class Trail:
    """weights: (updates + 1, 4810), those of digits.mlp after each update; the first row is the random start."""

    weights: Tensor


def trail(training: str = CALM, seed: int = 0, updates: int = UPDATES) -> Trail:
    """Train digits.mlp with AdamW and keep every state of its weights; the caller's random streams stay."""
    rate, batch = TRAININGS[training]
    data, kept = digits.load("train"), []
    with randomness.preserved():
        randomness.seed_all("trail", seed)
        model = digits.mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
        kept.append(flat(model))
        rows: list[Tensor] = []
        for _ in range(updates):
            rows = rows or list(torch.randperm(len(data)).split(batch))
            images, labels = data.__getitems__(rows.pop(0).tolist())
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            kept.append(flat(model))
    return Trail(torch.stack(kept))


def flat(model: nn.Module) -> Tensor:
    """All weights in one row, a copy."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def averages(one: Trail, decays: np.ndarray, reset_at: int = 0) -> Tensor:
    """The average after each update, given the decay that each used; reset_at: becomes the raw weights after it."""
    average, kept = one.weights[0].clone(), [one.weights[0]]
    for update, decay in enumerate(decays.tolist(), start=1):
        average.lerp_(one.weights[update], 1 - decay)
        if update == reset_at:
            average.copy_(one.weights[update])
        kept.append(average.clone())
    return torch.stack(kept)


def decays_used(decay: float, warmup: bool, updates: int, count_lost_at: int = 0) -> np.ndarray:
    """The decay of each update; with warm-up it depends on a count, which may be lost after an update."""
    counts = np.arange(updates)
    if count_lost_at:
        counts = np.where(counts >= count_lost_at, counts - count_lost_at, counts)
    return np.minimum(decay, (1 + counts) / (10 + counts)) if warmup else np.full(updates, decay)


def scores(weights: Tensor, data: digits.DigitData) -> tuple[np.ndarray, np.ndarray]:
    """Mean loss in nats and accuracy on all of data, for each row of weights, in eval mode."""
    side = digits.SIDE**2
    first, first_bias, second, second_bias = weights.split([64 * side, 64, digits.CLASSES * 64, digits.CLASSES], dim=1)
    inputs = data.images.flatten(1).expand(len(weights), -1, -1)
    hidden = torch.baddbmm(first_bias[:, None], inputs, first.view(-1, 64, side).transpose(1, 2)).relu()
    out = torch.baddbmm(second_bias[:, None], hidden, second.view(-1, digits.CLASSES, 64).transpose(1, 2))
    labels = data.labels.expand(len(weights), -1)
    loss = nn.functional.cross_entropy(out.transpose(1, 2), labels, reduction="none").mean(1)
    return loss.numpy(), (out.argmax(2) == labels).float().mean(1).numpy()


def plotted(one: Trail, decay: float, warmup: bool = False, lost: str = "nothing", stop: int = STOP) -> AveragePlot:
    """Raw and averaged validation loss every five updates, and what the average is made of."""
    held, updates = digits.load("validation"), len(one.weights) - 1
    reset_at = stop if lost == "average" else 0
    used = decays_used(decay, warmup, updates, stop if lost == "count" else 0)
    shown = np.arange(LOOK_EVERY, updates + 1, LOOK_EVERY)
    raw_loss, raw = scores(one.weights[shown], held)
    loss, averaged = scores(averages(one, used, reset_at)[shown], held)
    parts = made_of(used, reset_at)[:, shown - 1]
    if lost == "nothing":
        return AveragePlot(shown, raw_loss, loss, float(raw[-1]), float(averaged[-1]), parts, decay, warmup)
    whole, _ = scores(averages(one, decays_used(decay, warmup, updates))[shown], held)
    return AveragePlot(
        shown, raw_loss, loss, float(raw[-1]), float(averaged[-1]), parts, decay, warmup, lost, stop, whole
    )  # fmt: skip
