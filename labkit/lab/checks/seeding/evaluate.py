"""Check of lesson 02: evaluating without a trace."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from labkit import randomness
from labkit.lab.checks.frame import call, check, near, not_yet, number, shown

LESSON = "02_seeding"


class _Examples(Dataset[Any]):
    """Examples whose preparation draws from numpy's and Python's global generators, as many a transform does."""

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor, noisy: bool) -> None:
        self.inputs, self.targets, self.noisy = inputs, targets, noisy

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.noisy:
            np.random.random()
            random.random()
        return self.inputs[index], self.targets[index]


class _Scene:
    """A classifier with dropout and one part kept in eval mode, ready to be trained and looked at."""

    def __init__(self, seed: int, noisy: bool) -> None:
        randomness.seed_all("check evaluate", seed)
        self.model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 4))
        self.model[1].eval()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.inputs, self.targets = torch.randn(22, 6), torch.randint(4, (22,))
        self.loader = DataLoader(_Examples(self.inputs, self.targets, noisy), batch_size=8)

    def train(self, update: int) -> float:
        at = slice((update * 5) % 14, (update * 5) % 14 + 8)
        self.optimizer.zero_grad()
        loss = cross_entropy(self.model(self.inputs[at]), self.targets[at])
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def losses(self, looks: dict[int, Callable[[], Any]]) -> list[float]:
        """Losses of 24 updates with a look after some of them."""
        seen = []
        for update in range(1, 25):
            seen.append(self.train(update))
            if update in looks:
                looks[update]()
        return seen

    def due(self) -> tuple[float, list[float]]:
        """The right sum, and the mean of each batch."""
        modes = [(m, m.training) for m in self.model.modules()]
        self.model.eval()
        with torch.no_grad():
            parts = [cross_entropy(self.model(x), y, reduction="sum").item() for x, y in self._batches()]
        for module, mode in modes:
            module.training = mode
        return sum(parts), [p / len(y) for p, (_, y) in zip(parts, self._batches(), strict=True)]

    def _batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return zip(self.inputs.split(8), self.targets.split(8), strict=True)


@check("evaluate", LESSON, minutes=15)
def check_evaluate(answer: Callable[..., Any], seed: int) -> str:
    """`evaluate(model, loader) -> (sum, count)`: summed cross entropy over all examples, and how many there were.

    The model is looked at in eval mode. Afterwards training continues in the same bits: the generators of Python, numpy
    and torch, the mode of every module and the gradients are as they were found.
    """
    scene = _Scene(seed, noisy=True)
    total, means = scene.due()
    modes = {name: m.training for name, m in scene.model.named_modules()}
    state = {name: value.clone() for name, value in scene.model.state_dict().items()}
    before = randomness.capture({})
    got = call(answer, scene.model, scene.loader)
    moved = randomness.differences(before, randomness.capture({}))
    _judge_value(got, total, means, scene, state)
    _judge_modes(scene.model, modes)
    if moved:
        _judge_streams(answer, seed, before, moved)
    if any(p.grad is not None for p in scene.model.parameters()):
        not_yet(
            "leaves gradients",
            expected="no gradient after a look",
            seen="gradients in the parameters",
            try_next="Look inside torch.no_grad().",
        )
    return "Training continued in the same bits, and the score is a sum and a count."


def _judge_value(got: Any, total: float, means: list[float], scene: _Scene, state: dict[str, torch.Tensor]) -> None:
    count, size = len(scene.targets), scene.loader.batch_size or 1
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        short = count % size
        extra = (
            f" It is already divided; the last batch of {short} would count as one of {size}."
            if _is_number(got)
            else ""
        )
        not_yet(
            "returns a mean",
            f"A sum and a count were expected.{extra}",
            expected=f"({total:.4g}, {count})",
            seen=shown(got),
            try_next="Add up sums and counts, divide nowhere.",
        )
    if isinstance(got[0], torch.Tensor) and got[0].requires_grad:
        not_yet(
            "leaves a graph",
            expected="numbers",
            seen="a tensor with a gradient history",
            try_next="Look inside torch.no_grad().",
        )
    score, counted = number(got[0], "The sum"), number(got[1], "The count")
    if near(score, total / count, 1e-4) or near(score, sum(means), 1e-4) or near(score, sum(means) / len(means), 1e-4):
        not_yet(
            "returns a mean",
            f"A sum and a count were expected; {score:.3g} is already divided, the last batch of "
            f"{count % size} would count as one of {size}.",
            expected=f"sum {total:.4g}, count {count}",
            seen=f"{score:.4g}, {counted:g}",
            try_next="Use reduction='sum'.",
        )
    if not near(score, total, 1e-4):
        moved = [name for name, value in scene.model.state_dict().items() if not torch.equal(value, state[name])]
        extra = f" {moved[0]} moved while you looked." if moved else ""
        not_yet(
            "looks in train mode",
            f"With dropout active the score is another one.{extra}",
            expected=f"{total:.4g}",
            seen=f"{score:.4g}",
            smallest=f"{count} examples",
            try_next="Put the model into eval mode before looking.",
        )
    if counted != count:
        not_yet(
            "counts batches",
            expected=f"{count} examples",
            seen=f"{counted:g}",
            try_next="Add len(targets) for each batch.",
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.numel() == 1)


def _judge_modes(model: nn.Module, modes: dict[str, bool]) -> None:
    now = {name: m.training for name, m in model.named_modules()}
    changed = [name for name in modes if modes[name] != now[name]]
    if not changed:
        return
    if all(not now[name] for name in changed):
        not_yet(
            "leaves eval mode behind",
            f"{len(changed)} modules came back in eval mode: dropout is off from here on.",
            expected="the mode that was found",
            seen="eval mode",
            smallest=changed[-1] or "the model itself",
            try_next="Note each module's .training first, put it back at the end.",
        )
    not_yet(
        "ends in train mode",
        f"Module {changed[0]!r} was given in eval mode and came back in train mode. Put back what you "
        "found, module by module.",
        expected="eval mode",
        seen="train mode",
        smallest=f"module {changed[0]!r}",
        try_next="model.train() reaches every part; note each module's .training instead.",
    )


def _judge_streams(answer: Callable[..., Any], seed: int, before: dict[str, Any], moved: list[str]) -> None:
    if "torch" not in moved:
        names = {"numpy": "numpy", "python": "Python"}
        stream = moved[0]
        not_yet(
            "restores torch only",
            f"torch's stream is equal, {names.get(stream, stream)}'s moved by {_drawn(before, stream)} numbers.",
            expected="every global generator as before",
            seen=f"moved: {', '.join(moved)}",
            smallest="one look",
            try_next="Put back Python's and numpy's states too; labkit.randomness.preserved() does all of them.",
        )
    quiet, looked = _Scene(seed, noisy=False), _Scene(seed, noisy=False)
    after: list[torch.Tensor] = []

    def look() -> None:
        call(answer, looked.model, looked.loader)
        after.append(torch.get_rng_state())

    a, b = quiet.losses({}), looked.losses({10: look, 20: look})
    first = next((n for n, (x, y) in enumerate(zip(a, b, strict=True), start=1) if x != y), 11)
    if torch.equal(after[0], after[1]):
        not_yet(
            "re-seeds in place of restoring",
            f"Update {first} and update {first + 10} used the same masks. Restoring is not re-seeding.",
            expected="the stream goes on where it was",
            seen="the same stream after every look",
            smallest="two looks",
            try_next="Note torch.get_rng_state() before the look and put that back.",
        )
    not_yet(
        "draws from torch's generator",
        f"Training loss first differs at update {first}. Something here drew from torch's global "
        "generator: look at who makes the iterator.",
        expected=f"loss {a[first - 1]:.4g}",
        seen=f"{b[first - 1]:.4g}",
        smallest="one look after update 10",
        try_next="Making an iterator over a loader draws one number. Put the stream back.",
    )


def _drawn(before: dict[str, Any], stream: str) -> int:
    """How many uniform numbers lead from the noted state to the present one."""
    now = randomness.capture({})
    randomness.restore(before, {})
    for count in range(10_001):
        if stream not in randomness.differences(now, randomness.capture({})):
            return count
        if stream == "numpy":
            np.random.random()
        else:
            random.random()
    return -1
