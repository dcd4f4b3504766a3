"""`labkit prove --matrix`: every pair of settings that could disturb a resume, in a table of few proofs. Lesson 04.

The table is pairwise covering: for any two settings and any two of their values, some row has both. A row is proved at
boundaries 0, in the middle, on both sides of an epoch's end, at the target, and with three interruptions in one epoch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from labkit.proof.prove import Proof, prove

Choice = Mapping[str, Any]

FACTORS: dict[str, dict[str, Choice]] = {
    "recipe": {"digits mlp": {"network": "mlp"}, "digits conv": {"network": "conv"}, "names": {}},
    "data": {"plain": {}, "augmented": {"augment": True}},
    "workers": {"0": {}, "2": {"workers": 2, "start_method": "fork"}},
    "microbatches": {"1": {}, "3": {"microbatch_size": (150,)}, "uneven": {"microbatch_size": (200, 7, 90)}},
    "average": {"off": {}, "on": {"ema_decay": 0.9, "ema_warmup": True, "eval_weights": "ema"}},
    "precision": {
        "fp32": {}, "bf16": {"precision": "bf16"},
        "fp16, forced skips": {"precision": "fp16", "initial_scale": 2.0**22, "growth_interval": 2},
    },
    "clock": {
        "updates": {"schedule": "cosine", "horizon": 40, "warmup": 2},
        "examples": {"schedule": "linear", "schedule_clock": "examples", "horizon": 20000},
        "epochs": {"schedule": "step", "schedule_clock": "epochs", "schedule_interval": 1},
        "validation": {"schedule": "plateau", "schedule_clock": "validation", "schedule_interval": 1},
    },
    "early stopping": {"off": {}, "on": {"patience": 2, "min_improvement": 0.5}},
}  # fmt: skip

COMMON: Choice = {"batch_size": 450, "eval_every": 2, "max_norm": 1.0, "norm_every": 2, "updates": 8}
"""Three updates an epoch for the digits, ten for the names; two epochs' ends within the run."""


def covering_rows(factors: Mapping[str, Mapping[str, Any]] = FACTORS) -> list[dict[str, str]]:
    """Rows of level names, every possible pair of levels in at least one; greedy, so few but not provably fewest."""
    names = list(factors)
    missing = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x, y in itertools.product(factors[a], factors[b])
        if possible({a: x, b: y})
    }
    rows: list[dict[str, str]] = []
    candidates = [
        row
        for levels in itertools.product(*factors.values())
        if possible(row := dict(zip(names, levels, strict=True)))
    ]
    while missing:
        best = max(candidates, key=lambda row: len(_pairs(row) & missing))
        missing -= _pairs(best)
        rows.append(best)
    return rows


def possible(row: Mapping[str, str]) -> bool:
    """The names have no random transform."""
    return not (row.get("recipe") == "names" and row.get("data") == "augmented")


def _pairs(row: Mapping[str, str]) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    return set(itertools.combinations(row.items(), 2))


def row_settings(row: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """(recipe, settings) of a row."""
    settings = dict(COMMON)
    for factor, level in row.items():
        settings.update(FACTORS[factor][level])
    return row["recipe"].split()[0], settings


@dataclass(frozen=True)
class Matrix:
    """The proofs of all rows."""

    rows: tuple[tuple[dict[str, str], Proof], ...]

    @property
    def exact(self) -> bool:
        return all(proof.exact for _, proof in self.rows)

    def __str__(self) -> str:
        lines = []
        for row, proof in self.rows:
            lines.append(f"{proof.exact_rows:>3} of {len(proof.rows):<3} {', '.join(row.values())}")
            if not proof.exact:
                lines += [f"      {text}" for text in str(proof).splitlines() if "equal in every bit" not in text]
        stops = sum(len(proof.rows) for _, proof in self.rows)
        exact = sum(proof.exact_rows for _, proof in self.rows)
        lines.append(f"{'EXACT' if self.exact else 'NOT EXACT'}: {exact} of {stops} stops in {len(self.rows)} rows.")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"exact": self.exact, "rows": [{"row": row, **asdict(proof)} for row, proof in self.rows]}


def prove_matrix(
    rows: Sequence[dict[str, str]] | None = None, *, jobs: int = 2, progress: Callable[[str], None] = lambda text: None
) -> Matrix:
    """Prove every row of the covering table, or the rows given. Takes about half a minute a row on two cores."""
    chosen = covering_rows() if rows is None else list(rows)
    done = []
    for number, row in enumerate(chosen, 1):
        recipe, settings = row_settings(row)
        stops = _stops(recipe, settings)
        progress(f"row {number} of {len(chosen)}")
        done.append((row, prove(recipe, stops=stops, jobs=jobs, **settings)))
    return Matrix(tuple(done))


def _stops(recipe: str, settings: Mapping[str, Any]) -> list[int | tuple[int, ...]]:
    """Boundaries that surely exist: an early stop or skipped attempts only move the end."""
    if recipe == "names":
        return [0, 1, 3, (1, 2, 4)]
    return [0, 2, 3, 4, (1, 2, 4)]
