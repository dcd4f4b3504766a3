"""Check of lesson 04: name the lost piece from the records of two runs."""

from __future__ import annotations

import copy
import functools
import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from labkit import randomness
from labkit.lab.checks.checkpointing.workshop import Record, Run, State, Workshop
from labkit.lab.checks.frame import call, check, not_yet, shown

LESSON = "04_checkpointing"
PIECES = ("cursor", "epoch", "generator", "optimizer", "schedule", "average", "buffers", "nothing")
ASKED = ("cursor", "generator", "optimizer", "schedule", "average", "buffers")


@dataclass(frozen=True, eq=False)
class Puzzle:
    """The records of the uninterrupted run after the stop, and those of a resumed run that lost one piece."""

    letter: str
    stop: int
    straight: list[Record]
    resumed: list[Record]

    def rows(self) -> list[tuple[str, ...]]:
        """One row a quantity: = or ≠ for each update; indices and rates of the first update are written out below."""
        pairs = list(zip(self.straight, self.resumed, strict=True))
        return [(name, *["=" if a[name] == b[name] else "≠" for a, b in pairs]) for name in self.straight[0]]

    def _details(self) -> list[str]:
        return [
            f"first {key}: {_plain(self.straight[0][key])} uninterrupted, {_plain(self.resumed[0][key])} resumed"
            for key in ("indices", "rate")
        ]

    def _head(self) -> tuple[str, ...]:
        return (f"puzzle {self.letter}", *(str(self.stop + n + 1) for n in range(len(self.straight))))

    def __repr__(self) -> str:
        lines = [
            "".join([f"{row[0]:<18}", *(f"{cell:>4}" for cell in row[1:])]) for row in (self._head(), *self.rows())
        ]
        return "\n".join([*lines, *self._details()])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{cell}</th>" for cell in self._head())
        body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in self.rows())
        said = "<br>".join(html.escape(line) for line in self._details())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{said}</p>"


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}"


def resumed(workshop: Workshop, state: State, lost: str) -> Run:
    """A run built anew and given back everything but one piece."""
    kept = copy.deepcopy(state)
    model = workshop.model()
    if lost == "buffers":
        fresh = dict(model.named_buffers())
        kept["model"] = {**kept["model"], **{name: b.detach().clone() for name, b in fresh.items()}}
    model.load_state_dict(kept["model"])
    optimizer = workshop.optimizer(model)
    schedule = workshop.schedule(optimizer)
    if lost != "schedule":
        schedule.load_state_dict(kept["schedule"])
    first_rates = [group["lr"] for group in optimizer.param_groups]
    if lost == "optimizer":
        kept["optimizer"]["state"] = {}
    optimizer.load_state_dict(kept["optimizer"])
    if lost == "schedule":
        for group, rate in zip(optimizer.param_groups, first_rates, strict=True):
            group["lr"] = rate
    average = kept["average"]
    if lost == "average":
        average = {name: p.detach().clone() for name, p in model.named_parameters()}
    torch.set_rng_state(kept["random"])
    if lost == "generator":
        randomness.seed_all("another process")
    epoch = 0 if lost == "epoch" else kept["epoch"]
    return Run(model, optimizer, schedule, average, epoch, 0 if lost == "cursor" else kept["cursor"], kept["update"])


def puzzles(seed: int = 0) -> dict[str, Puzzle]:
    """Letter -> puzzle, six of them, each run just now; seed 0 gives those of the lesson."""
    with randomness.preserved():
        return {letter: puzzle for letter, (puzzle, _) in _made(seed).items()}


@functools.lru_cache(maxsize=4)
def _made(seed: int) -> dict[str, tuple[Puzzle, str]]:
    workshop, stop = Workshop(seed), 12 + seed % 2
    run = workshop.start()
    for _ in range(stop):
        workshop.advance(run)
    state = workshop.save(run)
    straight = [workshop.advance(run) for _ in range(5)]
    lost = randomness.numpy_generator("puzzles", seed).permutation(list(ASKED)).tolist()
    out = {}
    for letter, piece in zip("ABCDEF", lost, strict=True):
        other = resumed(workshop, state, piece)
        out[letter] = (Puzzle(letter, stop, straight, [workshop.advance(other) for _ in range(5)]), piece)
    return out


_CONFUSED = {
    ("cursor", "epoch"): "The first indices are those of the start of this epoch, not of epoch 0.",
    (
        "generator",
        "optimizer",
    ): "Loss differs at +1 with equal indices. Optimizer state cannot touch the first loss; the masks can.",
    ("schedule", "optimizer"): "Look at the used rate before the loss.",
    ("average", "nothing"): "Training is equal; compare the evaluated loss of the average.",
    ("buffers", "nothing"): "Training is equal; compare the evaluated loss. Which module behaves differently in eval?",
    ("buffers", "average"): "The raw weights evaluate differently too, and they never see the average.",
    ("average", "buffers"): "The raw weights evaluate alike, and they use the same buffers.",
}


@check("which_piece", LESSON, minutes=10, wants_function=False)
def check_which_piece(answer: Any, seed: int) -> str:
    """`lost`: letter -> piece for the six puzzles of the lesson; or a function (straight, resumed) -> piece.

    A function gets the two lists of records and is tried on other puzzles when the instructor's seed asks for them.
    """
    asked = _made(seed if callable(answer) else 0)
    if not callable(answer) and (not isinstance(answer, Mapping) or set(answer) != set(asked)):
        not_yet(
            "not the table",
            expected="one piece for each of " + ", ".join(asked),
            seen=shown(answer),
            try_next="Keep the letters as keys.",
        )
    said = {}
    for letter, (puzzle, _) in asked.items():
        said[letter] = call(answer, puzzle.straight, puzzle.resumed) if callable(answer) else answer[letter]
        if said[letter] not in PIECES:
            not_yet(
                "not a piece",
                expected="one of " + ", ".join(PIECES),
                seen=shown(said[letter]),
                smallest=f"puzzle {letter}",
                try_next="The pieces are listed above the puzzles.",
            )
    right = sum(said[letter] == true for letter, (_, true) in asked.items())
    for letter, (puzzle, true) in asked.items():
        if said[letter] != true:
            first = next(row[0] for row in puzzle.rows() if "≠" in row[1:])
            hint = _CONFUSED.get(
                (true, said[letter]), f"The first quantity to differ is: {first}. Can {said[letter]} reach it?"
            )
            not_yet(
                f"{said[letter]} in place of {true}" if (true, said[letter]) in _CONFUSED else "another piece",
                f"{hint} Right in {right} of {len(asked)}.",
                expected="a piece that can make exactly these differences",
                seen=f"puzzle {letter}: {said[letter]}",
                smallest=f"puzzle {letter}",
                try_next="Read the rows from top to bottom at the first update after the stop.",
            )
    return f"All {len(asked)} found, from records alone."
