"""Check of lesson 01: one update in the right order."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

from labkit import randomness
from labkit.lab.checks.frame import call, check, near, not_yet, number, shown

LESSON = "01_state_machine"


class _Watched(torch.optim.SGD):
    """SGD that notes what it finds at its turn: the rate, and the norm of the gradient (None when there is none)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[tuple[float, float | None]] = []

    def step(self, closure: Any = None) -> Any:
        norms = [p.grad.norm() for group in self.param_groups for p in group["params"] if p.grad is not None]
        self.seen.append((self.param_groups[0]["lr"], float(torch.stack(norms).norm()) if norms else None))
        return super().step(closure)


class _Scene:
    """A small classifier, its optimizer, a rising rate, and one batch."""

    def __init__(self, seed: int, rates: list[float]) -> None:
        generator = randomness.torch_generator("check update", seed)
        self.model = nn.Linear(6, 3)
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))
        self.batch = 3 * torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)
        self.optimizer = _Watched(self.model.parameters(), lr=1.0)
        self.schedule = LambdaLR(self.optimizer, lambda n: rates[min(n, len(rates) - 1)])
        self.rates = rates

    def loss(self) -> Tensor:
        return cross_entropy(self.model(self.batch[0]), self.batch[1])

    def gradient_norm(self) -> float:
        return float(
            torch.stack([g.norm() for g in torch.autograd.grad(self.loss(), list(self.model.parameters()))]).norm()
        )

    def run(self, answer: Callable[..., Any], max_norm: float) -> Any:
        return call(answer, self.model, self.optimizer, self.schedule, self.batch, max_norm)


@check("update", LESSON, minutes=15)
def check_update(answer: Callable[..., Any], seed: int) -> str:
    """`update(model, optimizer, schedule, batch, max_norm) -> (loss, rate)`.

    batch is (inputs, targets); the loss is the mean cross entropy, returned as a number; rate is the one this update
    used; the gradient is clipped to max_norm; the model's mode is left alone.
    """
    step = 0.01 * (seed % 5 + 5)
    scene = _Scene(seed, [step, 2 * step, 3 * step, 4 * step])
    before, loss_due, norm = (
        copy.deepcopy(scene.model.state_dict()),
        float(scene.loss().detach()),
        scene.gradient_norm(),
    )
    limit = norm / 4
    loss, rate = _pair(scene.run(answer, limit))
    _judge_loss(loss, loss_due, scene)
    _judge_gradient(scene, before, limit, norm)
    used = scene.optimizer.seen[0][0]
    if not near(used, scene.rates[0]):
        not_yet(
            "schedule before optimizer",
            f"Update 1 used {used:.3g}; the schedule says {scene.rates[0]:.3g}. "
            "The schedule moved before the optimizer had used the rate.",
            expected=f"rate {scene.rates[0]:.3g}",
            seen=f"rate {used:.3g}",
            smallest="the first update",
            try_next="Let the optimizer move first, the schedule last.",
        )
    if near(rate, scene.rates[1]) and not near(rate, used):
        not_yet(
            "returns the next rate",
            "The weights are right, the reported rate is that of the following update.",
            expected=f"{used:.3g}",
            seen=f"{rate:.3g}",
            smallest="the first update",
            try_next="Read the rate before the schedule moves.",
        )
    if not near(rate, used):
        not_yet(
            "another rate",
            expected=f"the rate that was used, {used:.3g}",
            seen=f"{rate:.3g}",
            try_next="It is in optimizer.param_groups[0]['lr'].",
        )
    _judge_second(answer, scene, limit)
    _judge_clearing(answer, seed)
    return "Every update used its own rate, its own gradient, clipped, and left nothing behind."


def _pair(value: Any) -> tuple[Any, float]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        not_yet(
            "not a pair",
            "update returns two things.",
            expected="(loss, rate)",
            seen=shown(value),
            try_next="End with: return loss, rate",
        )
    return value[0], number(value[1], "The rate")


def _judge_loss(loss: Any, due: float, scene: _Scene) -> None:
    if isinstance(loss, Tensor) and loss.requires_grad:
        not_yet(
            "leaves a graph alive",
            "The returned loss still holds its graph; memory would grow with every update.",
            expected="a number",
            seen="a tensor with a gradient history",
            try_next="Return loss.item().",
        )
    if not near(number(loss, "The loss"), due, 1e-5):
        after = float(scene.loss().detach())
        if near(float(loss), after, 1e-5):
            not_yet(
                "loss after the update",
                "This is the loss of the weights after they moved.",
                expected=f"{due:.4g}",
                seen=f"{float(loss):.4g}",
                try_next="Return the loss that was differentiated.",
            )
        not_yet(
            "another loss",
            expected=f"mean cross entropy {due:.4g}",
            seen=f"{float(loss):.4g}",
            try_next="Use the mean over the batch.",
        )


def _judge_gradient(scene: _Scene, before: dict[str, Tensor], limit: float, norm: float) -> None:
    if not scene.optimizer.seen:
        not_yet(
            "no optimizer",
            "The optimizer was never asked to move the weights.",
            expected="one move",
            seen="none",
            try_next="Call optimizer.step() once.",
        )
    if len(scene.optimizer.seen) > 1:
        not_yet(
            "moves twice",
            "One update moves the weights once.",
            expected="1 move",
            seen=f"{len(scene.optimizer.seen)} moves",
        )
    at_turn = scene.optimizer.seen[0][1]
    still = all(torch.equal(before[name], value) for name, value in scene.model.state_dict().items())
    if at_turn is None or (at_turn == 0.0 and still):
        what = "None" if at_turn is None else "zero"
        not_yet(
            "clears before the optimizer",
            f"Loss is right, no weight moved: at the optimizer's turn every gradient was {what}.",
            expected=f"a gradient of norm {limit:.3g}",
            seen=what,
            try_next="Clear before backward, or after the optimizer.",
        )
    if at_turn > limit * 1.001:
        left = [p.grad.norm() for p in scene.model.parameters() if p.grad is not None]
        late = bool(left) and float(torch.stack(left).norm()) <= limit * 1.001
        where = (
            "You clipped after the optimizer." if late else "Clipping before backward, or not at all, changes nothing."
        )
        not_yet(
            "clips after the optimizer" if late else "clips before backward",
            f"The gradient that the optimizer saw had norm {at_turn:.3g}, the limit is {limit:.3g}. {where}",
            expected=f"norm {limit:.3g}",
            seen=f"norm {at_turn:.3g}",
            smallest=f"one batch whose gradient has norm {norm:.3g}",
            try_next="Clip between backward and the optimizer.",
        )
    if not near(at_turn, limit, 1e-3):
        not_yet(
            "another gradient",
            f"The optimizer saw norm {at_turn:.3g}; clipped to the limit it is {limit:.3g}.",
            expected=f"{limit:.3g}",
            seen=f"{at_turn:.3g}",
            try_next="Clip once, by the norm of all gradients together.",
        )


def _judge_second(answer: Callable[..., Any], scene: _Scene, limit: float) -> None:
    scene.run(answer, limit)
    used = scene.optimizer.seen[1][0] if len(scene.optimizer.seen) > 1 else float("nan")
    if near(used, scene.rates[0]):
        not_yet(
            "schedule never moves",
            f"Update 2 used {used:.3g} again; the schedule says {scene.rates[1]:.3g}.",
            expected=f"{scene.rates[1]:.3g}",
            seen=f"{used:.3g}",
            smallest="two updates",
            try_next="End with schedule.step().",
        )
    if not near(used, scene.rates[1]):
        not_yet(
            "another schedule",
            expected=f"update 2 uses {scene.rates[1]:.3g}",
            seen=f"{used:.3g}",
            try_next="Move the schedule once per update.",
        )


def _judge_clearing(answer: Callable[..., Any], seed: int) -> None:
    frozen = _Scene(seed, [0.0])
    norms = []
    for _ in range(2):
        frozen.run(answer, 1e9)
        norms.append(frozen.optimizer.seen[-1][1] or 0.0)
    if norms[1] > norms[0] * 1.001:
        not_yet(
            "never clears",
            "Called twice on the same batch with a frozen model, the second gradient is "
            f"{norms[1] / norms[0]:.3g} times the first.",
            expected=f"norm {norms[0]:.3g} both times",
            seen=f"{norms[0]:.3g}, then {norms[1]:.3g}",
            smallest="two updates at rate 0",
            try_next="Begin with optimizer.zero_grad().",
        )
