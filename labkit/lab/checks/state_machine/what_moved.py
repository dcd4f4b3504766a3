"""Check of lesson 01: what each call moves."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

from labkit import randomness
from labkit.lab.checks.frame import check, not_yet, shown

LESSON = "01_state_machine"


QUANTITIES = ("weights", "gradient", "moments", "batchnorm", "rate", "committed")
SITUATIONS: Mapping[str, str] = {
    "no_grad": "a forward pass in train mode, inside torch.no_grad()",
    "eval_backward": "a forward and backward pass in eval mode",
    "train_backward": "a forward and backward pass in train mode",
    "zero_gradient": "optimizer.step() of AdamW, seven updates into a run, with a gradient of exactly zero",
    "skipped": "attempt 8, refused because its gradient is not finite (this run's schedule counts committed updates)",
    "full_update": "a committed update: clear, forward, backward, optimizer, schedule, count",
}


class _Bench:
    """A network with BatchNorm, seven committed updates into a run; `measured(name)` runs one situation."""

    def __init__(self, seed: int) -> None:
        generator = randomness.torch_generator("check what moved", seed)
        randomness.seed_all("check what moved", seed)
        self.model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.02)
        self.schedule = LambdaLR(self.optimizer, lambda n: 1 / (1 + n))
        self.batch = torch.randn(16, 5, generator=generator), torch.randint(3, (16,), generator=generator)
        self.attempted = self.committed = 0
        for _ in range(7):
            self.full_update()
        self.optimizer.zero_grad()

    def backward(self) -> None:
        cross_entropy(self.model(self.batch[0]), self.batch[1]).backward()

    def no_grad(self) -> None:
        with torch.no_grad():
            self.model(self.batch[0])

    def eval_backward(self) -> None:
        self.model.eval()
        self.backward()

    def train_backward(self) -> None:
        self.backward()

    def zero_gradient(self) -> None:
        for p in self.model.parameters():
            p.grad = torch.zeros_like(p)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def skipped(self) -> None:
        buffers = copy.deepcopy(dict(self.model.named_buffers()))
        self.attempted += 1
        self.backward()
        next(p for p in self.model.parameters()).grad[0] = float("nan")  # type: ignore[index]
        self.optimizer.zero_grad()
        self.model.load_state_dict(buffers, strict=False)

    def full_update(self) -> None:
        self.attempted += 1
        self.optimizer.zero_grad()
        self.backward()
        self.optimizer.step()
        self.schedule.step()
        self.committed += 1

    def state(self) -> dict[str, Tensor]:
        parts: dict[str, Iterable[Tensor]]
        moments = [v for s in self.optimizer.state.values() for k, v in sorted(s.items()) if k != "step"]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.model.parameters()]
        stats = [b.double() for b in self.model.buffers()]
        parts = {"weights": list(self.model.parameters()), "gradient": grads, "moments": moments, "batchnorm": stats}
        flat = {name: torch.cat([t.detach().double().flatten() for t in tensors]) for name, tensors in parts.items()}
        flat["rate"] = torch.tensor([self.optimizer.param_groups[0]["lr"]])
        flat["committed"] = torch.tensor([float(self.committed)])
        return flat

    def measured(self, name: str) -> dict[str, float]:
        """How far each quantity moved (2-norm) in one situation."""
        before = {key: value.clone() for key, value in self.state().items()}
        getattr(self, name)()
        return {key: float((value - before[key]).norm()) for key, value in self.state().items()}


def what_moves(seed: int = 0) -> dict[str, dict[str, float]]:
    """situation -> quantity -> how far it moved, each situation really run on a fresh bench."""
    return {name: _Bench(seed).measured(name) for name in SITUATIONS}


@check("what_moved", LESSON, minutes=10, wants_function=False)
def check_what_moved(answer: Any, seed: int) -> str:
    """`moved`: for each name in SITUATIONS the collection of names from QUANTITIES that moved."""
    table = _table(answer)
    moves = what_moves(seed)
    said = [(row, name, name in table[row], moves[row][name] > 0) for row in SITUATIONS for name in QUANTITIES]
    right = sum(claim == true for _, _, claim, true in said)
    cells = len(said)
    if len({claim for _, _, claim, _ in said}) == 1:
        not_yet(
            "all alike",
            f"Right in {right} of {cells}: you gave every cell the same answer.",
            expected="a choice for each cell",
            seen="one answer for all",
            try_next="Start with row no_grad and say aloud which object each call touches.",
        )
    far = {(row, name): moves[row][name] for row in SITUATIONS for name in QUANTITIES}
    traps = (
        (
            "no-grad freezes BatchNorm",
            "no_grad",
            "batchnorm",
            f"It moved by {far['no_grad', 'batchnorm']:.2g}: no-grad stops recording, not the running statistics.",
        ),
        (
            "eval stops gradients",
            "eval_backward",
            "gradient",
            f"After eval the gradient norm is "
            f"{far['eval_backward', 'gradient']:.2g}: eval changes layers, not recording.",
        ),
        (
            "a zero gradient moves nothing",
            "zero_gradient",
            "weights",
            f"AdamW moved the weights by "
            f"{far['zero_gradient', 'weights']:.2g} with a gradient of exactly zero: momentum and decay still act.",
        ),
        (
            "a skipped attempt advances the schedule",
            "skipped",
            "rate",
            "Here the rate stayed: the schedule counts committed updates in this run. Attempted: 8, committed: 7.",
        ),
    )
    wrong = {(row, name) for row, name, claim, true in said if claim != true}
    for title, row, name, message in traps:
        if (row, name) in wrong:
            not_yet(
                title,
                message,
                expected=_word(far[row, name] > 0),
                seen=_word(name in table[row]),
                smallest=f"{row}, {name}",
                try_next=f"Right in {right} of {cells} so far. Run {row} yourself and print {name} before and after.",
            )
    if wrong:
        row, name, claim, true = next(s for s in said if (s[0], s[1]) in wrong)
        not_yet(
            "not every cell",
            f"Right in {right} of {cells}.",
            expected=_word(true),
            seen=_word(claim),
            smallest=f"{row}, {name}",
            try_next=f"Which object does this touch: {SITUATIONS[row]}?",
        )
    return f"All {cells} cells hold, each one run just now."


def _word(yes: bool) -> str:
    return "moved" if yes else "did not move"


def _table(answer: Any) -> dict[str, set[str]]:
    if not isinstance(answer, Mapping) or set(answer) != set(SITUATIONS):
        not_yet(
            "not the table",
            expected="one entry for each of " + ", ".join(SITUATIONS),
            seen=shown(answer),
            try_next="Keep the keys of the table as they are.",
        )
    table = {}
    for row, names in answer.items():
        if not isinstance(names, (set, frozenset, list, tuple)) or not set(names) <= set(QUANTITIES):
            not_yet(
                "not the table",
                expected="a collection of names from " + ", ".join(QUANTITIES),
                seen=shown(names),
                smallest=row,
            )
        table[row] = set(names)
    return table
