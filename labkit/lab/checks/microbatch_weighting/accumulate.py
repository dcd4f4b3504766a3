"""Check of lesson 03: gradients of an update that was cut into microbatches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from labkit import randomness
from labkit.lab.checks.frame import call, check, near, not_yet, number, shown

LESSON = "03_microbatch_weighting"
PAD = -100
Batch = tuple[Tensor, Tensor]
CUTS: tuple[tuple[int, ...], ...] = ((8,), (2, 6), (1,) * 8, (6, 2, 0))


class Letters(nn.Module):
    """A next-letter model small enough to differentiate in float64."""

    def __init__(self, seed: int, letters: int = 7, width: int = 5) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(letters, width), nn.Linear(width, letters)
        self.double()
        generator = randomness.torch_generator("check accumulate", seed)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(self.embed(inputs))


def names(seed: int) -> Batch:
    """Eight names of 2 to 9 letters, shortest first: inputs and targets (8, 9), targets padded with -100."""
    rng = randomness.numpy_generator("check accumulate names", seed)
    lengths = [2, 3, 4, 5, 6, 7, 8, 9]
    inputs, targets = torch.zeros(8, 9, dtype=torch.long), torch.full((8, 9), PAD)
    for row, length in enumerate(lengths):
        inputs[row, :length] = torch.from_numpy(rng.integers(0, 7, length))
        targets[row, :length] = torch.from_numpy(rng.integers(0, 7, length))
    return inputs, targets


def cut(batch: Batch, sizes: Sequence[int]) -> list[Batch]:
    """Microbatches of these sizes; size 0 is a microbatch of one row that is all padding."""
    pieces, at = [], 0
    for size in sizes:
        if size:
            pieces.append((batch[0][at : at + size], batch[1][at : at + size]))
        else:
            pieces.append((batch[0][:1], torch.full_like(batch[1][:1], PAD)))
        at += size
    return pieces


class _Gradients:
    """Flat gradients of the pieces, from which the right and the known-wrong totals are put together."""

    def __init__(self, seed: int, pieces: list[Batch]) -> None:
        self.model, self.pieces = Letters(seed), pieces
        self.counts = [int((y != PAD).sum()) for _, y in pieces]
        self.rows = [int((y != PAD).any(dim=1).sum()) for _, y in pieces]
        self.cells = [y.numel() for _, y in pieces]
        losses = [self._sum(x, y) for x, y in pieces]
        self.sums = [float(loss.detach()) for loss in losses]
        self.grads = [
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(self.model.parameters()))])
            for loss in losses
        ]

    def _sum(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="sum")

    def weighted(self, weights: Sequence[float]) -> Tensor:
        return torch.stack([g * w for g, w in zip(self.grads, weights, strict=True)]).sum(0)

    def right(self) -> Tensor:
        return self.weighted([1 / max(sum(self.counts), 1)] * len(self.pieces))

    def wrong(self) -> dict[str, Tensor]:
        """Misconception -> the gradient it leads to."""
        n, total, last = len(self.pieces), sum(self.counts), len(self.pieces) - 1
        inverse = [1 / c if c else 0.0 for c in self.counts]
        return {
            "divides by the number of microbatches": self.weighted([w / n for w in inverse]),
            "divides by padded length": self.weighted([1 / sum(self.cells)] * n),
            "divided twice": self.weighted([w / total for w in inverse]),
            "weighs by name": self.weighted([w * r / sum(self.rows) for w, r in zip(inverse, self.rows, strict=True)]),
            "clears inside the loop": self.weighted([0.0] * last + [1 / total]),
            "never divides": self.weighted([1.0] * n),
            "adds up means": self.weighted(inverse),
        }


def _run(answer: Callable[..., Any], seed: int, pieces: list[Batch]) -> tuple[Any, Tensor]:
    model = Letters(seed)
    got = call(answer, model, [(x.clone(), y.clone()) for x, y in pieces])
    flat = [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in model.parameters()]
    return got, torch.cat(flat)


@check("accumulate", LESSON, minutes=15)
def check_accumulate(answer: Callable[..., Any], seed: int) -> str:
    """`accumulate(model, microbatches) -> (sum, count)`; afterwards the gradients are those of one big batch.

    microbatches: list of (inputs, targets), targets padded with -100. The objective is the mean cross entropy per
    letter of the whole update; sum and count are the summed loss and the number of letters. No optimizer, no clearing.
    """
    batch = names(seed)
    for sizes in CUTS[:2]:
        _judge(answer, seed, cut(batch, sizes), sizes)
    _judge_padding(answer, seed, batch)
    for sizes in CUTS[2:]:
        _judge(answer, seed, cut(batch, sizes), sizes)
    nothing = [(x, torch.full_like(y, PAD)) for x, y in cut(batch, (4, 4))]
    got, gradient = _run(answer, seed, nothing)
    if not bool(torch.isfinite(gradient).all()) or bool(gradient.any()):
        _empty(gradient, "an update without any valid letter")
    _judge_total(got, 0.0, 0, "an update without any valid letter")
    return f"The same gradient for {', '.join('+'.join(map(str, c)) for c in CUTS)} names, and none for none."


def _judge(answer: Callable[..., Any], seed: int, pieces: list[Batch], sizes: Sequence[int]) -> None:
    due, where = _Gradients(seed, pieces), "+".join(map(str, sizes)) + " names"
    got, gradient = _run(answer, seed, pieces)
    if not bool(torch.isfinite(gradient).all()):
        _empty(gradient, where)
    right = due.right()
    off = float((gradient - right).norm() / right.norm())
    if off > 1e-6:
        if not bool(gradient.any()):
            not_yet(
                "no gradient",
                expected="a gradient",
                seen="zero everywhere",
                smallest=where,
                try_next="Call backward().",
            )
        for name, wrong in due.wrong().items():
            if float((gradient - wrong).norm() / right.norm()) < 1e-6 and (
                len(sizes) > 1 or name != "clears inside the loop"
            ):
                _named(name, due, where)
        not_yet(
            "another gradient",
            f"It is {off:.0%} off.",
            expected=f"norm {float(right.norm()):.4g}",
            seen=f"norm {float(gradient.norm()):.4g}",
            smallest=where,
            try_next="Add up sums and counts; divide once by the count of the whole update.",
        )
    _judge_total(got, sum(due.sums), sum(due.counts), where)


def _named(name: str, due: _Gradients, where: str) -> None:
    n, total, first = len(due.pieces), sum(due.counts), due.counts[0]
    said = {
        "divides by the number of microbatches": f"The first microbatch has {first} of {total} letters and got "
        f"1/{n} of the update; {first}/{total} was due.",
        "divides by padded length": f"You divided by {sum(due.cells)} places; {total} hold a letter. "
        "Padding belongs in neither sum nor count.",
        "divided twice": f"The gradient of the last microbatch is 1/{due.counts[-1]} of the right one: divided twice.",
        "weighs by name": "You weighted by sequence: a choice, and another objective; the contract says by letter.",
        "clears inside the loop": "Only the last microbatch is left in the gradient.",
        "never divides": f"The gradient is {total} times too large: a sum was differentiated.",
        "adds up means": f"{n} means were added; the update counts {n} times.",
    }
    right, got = due.right(), due.wrong()[name]
    not_yet(
        name,
        said[name],
        expected=f"gradient of norm {float(right.norm()):.4g}",
        seen=f"norm {float(got.norm()):.4g}",
        smallest=where,
        try_next="Count the letters of the whole update first, then differentiate each sum divided by that count.",
    )


def _empty(gradient: Tensor, where: str) -> None:
    bad = int((~torch.isfinite(gradient)).sum())
    not_yet(
        "empty microbatch gives NaN",
        "0/0. A microbatch without targets contributes nothing; divide once, by the count of the whole update.",
        expected="finite gradients and a finite sum",
        seen=f"{bad} of {gradient.numel()} entries are not finite" if bad else "a gradient from nothing",
        smallest=where,
        try_next="Use reduction='sum', and return before dividing when the update has no letter at all.",
    )


def _judge_padding(answer: Callable[..., Any], seed: int, batch: Batch) -> None:
    wide = tuple(torch.nn.functional.pad(t, (0, 2), value=v) for t, v in zip(batch, (0, PAD), strict=True))
    plain, padded = (_run(answer, seed, cut(b, (2, 6)))[1] for b in (batch, (wide[0], wide[1])))
    off = float((plain - padded).norm() / plain.norm())
    if off > 1e-6:
        not_yet(
            "divides by padded length",
            f"Adding two padding columns changed your gradient by {off:.0%}. Padding belongs in neither sum nor count.",
            expected="the same gradient",
            seen=f"{off:.1%} off",
            smallest="2+6 names, two more columns of padding",
            try_next="Count targets that are not -100.",
        )


def _judge_total(got: Any, total: float, count: int, where: str) -> None:
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        not_yet("not a pair", expected="(sum, count)", seen=shown(got), try_next="End with: return total, count")
    if isinstance(got[0], Tensor) and got[0].requires_grad:
        not_yet("leaves a graph", expected="a number", seen="a tensor with a gradient history", try_next="Use .item().")
    score, counted = number(got[0], "The sum"), number(got[1], "The count")
    if math.isnan(score):
        _empty(torch.tensor([score]), where)
    if counted != count:
        not_yet(
            "another count",
            expected=f"{count} letters",
            seen=f"{counted:g}",
            smallest=where,
            try_next="Count targets that are not -100.",
        )
    if not near(score, total) and abs(score - total) > 1e-9:
        not_yet(
            "another sum",
            expected=f"{total:.4g}",
            seen=f"{score:.4g}",
            smallest=where,
            try_next="Return the sum, undivided.",
        )
