"""What every benchmark prints: one table, or one JSON object; exit status 1 when something is over its budget."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]


@dataclass(frozen=True)
class Row:
    """One measured value. limit: must not be above it; at_least: must not be below it; aim: what we would like."""

    name: str
    value: float
    unit: str = ""
    limit: float | None = None
    at_least: float | None = None
    aim: float | None = None

    @property
    def over(self) -> bool:
        high = self.limit is not None and not self.value <= self.limit
        return high or (self.at_least is not None and not self.value >= self.at_least)

    def __str__(self) -> str:
        bound = f"at most {self.limit:g}" if self.limit is not None else ""
        bound = f"at least {self.at_least:g}" if self.at_least is not None else bound
        aim = f", aim {self.aim:g}" if self.aim is not None else ""
        verdict = ("   OVER BUDGET" if self.over else "   within budget") if bound else ""
        return f"{self.name:<34}{self.value:>12.4g} {self.unit:<12}{bound}{aim}{verdict}".rstrip()


def parser(text: str | None) -> argparse.ArgumentParser:
    """A parser with --json, and the benchmark's first line as its description."""
    made = argparse.ArgumentParser(description=(text or "").strip().partition("\n")[0])
    made.add_argument("--json", action="store_true", help="one JSON object in place of the table")
    return made


def report(rows: Sequence[Row], as_json: bool, facts: Mapping[str, Any] | None = None) -> int:
    """Print; 0 when every row is within its budget, else 1."""
    bad = [row.name for row in rows if row.over]
    if as_json:
        print(json.dumps({"within_budget": not bad, "rows": [vars(row) for row in rows], **(facts or {})}))
    else:
        print("\n".join(map(str, rows)))
    return 1 if bad else 0
