"""Prove that a recipe resumes exactly: a straight run, and for each stop one continued in a fresh process. Lesson 04.

What is shared, honestly: the interrupted halves. One process runs straight without a single save; another publishes at
every stop, and its folder is copied there, as an interruption would leave it. If publishing changed anything, that
second process would differ from the first, and the proof says so.
"""

from __future__ import annotations

import html
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from labkit.config import MAY_CHANGE, RunConfig
from labkit.errors import ProofError
from labkit.proof.bench import Bench, Row, Stop
from labkit.proof.compare import Difference, first_difference
from labkit.proof.diagnose import diagnose as find_missing
from labkit.recipe import resolve
from labkit.recipes import find
from labkit.run import check_target


@dataclass(frozen=True)
class Proof:
    """The verdict over all stops. exact only if every boundary of every continued run is equal in every part."""

    recipe: str
    settings: dict[str, Any]
    updates: int
    boundaries: int
    rows: tuple[Row, ...]
    saving: Difference | None  # the run that saved at every stop against the one that never did
    missing: tuple[str, ...] = ()  # what diagnose() found, if anything differs
    unseen: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        return self.saving is None and all(row.exact for row in self.rows)

    @property
    def exact_rows(self) -> int:
        return sum(row.exact for row in self.rows)

    def __str__(self) -> str:
        lines = [f"{'stopped after':>15}  {'boundaries':>10}  continued in a fresh process"]
        for row in self.rows:
            stops = " + ".join(map(str, row.stops))
            lines.append(f"{stops:>15}  {row.compared:>10}  {'equal in every bit' if row.exact else row.difference}")
        lines.append(self.verdict)
        lines += [f"  - {text}" for text in self.missing]
        if self.unseen:
            lines.append("What this cannot see: " + "; ".join(self.unseen) + ".")
        return "\n".join(lines)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.saving is not None:
            return f"NOT EXACT: the run that saved is not the run that did not; {self.saving}."
        if self.exact:
            return (
                f"EXACT: {self.exact_rows} of {len(self.rows)} stops of {self.recipe} continue the same trajectory, "
                f"{self.updates} updates, bit for bit, on this machine."
            )
        return f"NOT EXACT: {len(self.rows) - self.exact_rows} of {len(self.rows)} stops of {self.recipe} differ."

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "exact": self.exact, "verdict": self.verdict}

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def prove(
    recipe: str, *, updates: int | None = None, stops: str | Sequence[int | Stop] = "all",
    folder: Path | str | None = None, jobs: int = 2, progress: Callable[[str], None] = lambda text: None,
    diagnose: bool = True, **settings: Any,
) -> Proof:  # fmt: skip
    """Run straight, interrupt at each stop, continue each in a fresh process, compare every boundary bit for bit.

    recipe: "digits", "names" or "file.py:attribute" (a fresh process must be able to find it). stops: "all" boundaries
    from the start to the target, or numbers of attempts; a tuple such as (3, 5, 8) is stopped three times in turn.
    Takes about 2 s a stop: most of it is importing torch. folder: keep everything there; default: a temporary one.
    Raises ConfigError and relatives for settings that cannot be used, ProofError when a process fails.
    """
    found = find(recipe)
    given = {**settings, **({} if updates is None else {"updates": updates})}
    config = resolve(found, recipe, given)
    check_target(config)
    with tempfile.TemporaryDirectory(prefix="labkit-proof-") as temporary:
        place = Path(folder) if folder is not None else Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        bench = Bench(place, recipe, _settings(config), jobs, progress)
        if stops == "all":  # how many there are is known after the straight run
            bench.run_straight()
            chains = _chains(stops, bench.straight[-1]["attempt"])
            leader = bench.run_leader([chain[0] for chain in chains])
        else:
            leader = bench.run_both(sorted({chain[0] for chain in _chosen(stops)}))
            chains = _chains(stops, bench.straight[-1]["attempt"])
        saving = first_difference(bench.straight, leader)
        rows = bench.run_chains(chains)
        identity = {name: value for name, value in bench.settings.items() if name not in MAY_CHANGE}
        last = bench.straight[-1]["update"]
        result = Proof(recipe, identity, last, len(bench.straight), rows, saving)
        if not result.exact and diagnose:
            missing, unseen = find_missing(bench, next((row for row in rows if not row.exact), None))
            result = replace(result, missing=tuple(missing), unseen=tuple(unseen))
        return result


def _settings(config: RunConfig) -> dict[str, Any]:
    """Every resolved value as start() takes it; nothing is saved but at the stops."""
    return {**config.settings(), "save_every": 0, "save_seconds": None, "save_epoch_end": False}


def _chains(stops: str | Sequence[int | Stop], last: int) -> list[Stop]:
    if stops == "all":
        return [(stop,) for stop in range(last + 1)]
    chosen = _chosen(stops)
    for chain in chosen:
        if list(chain) != sorted(set(chain)) or not 0 <= chain[0] <= chain[-1] <= last:
            raise ProofError(f"a stop at {'+'.join(map(str, chain))}", f"rising boundaries from 0 to {last}", "")
    return chosen


def _chosen(stops: str | Sequence[int | Stop]) -> list[Stop]:
    chosen = parse_stops(stops) if isinstance(stops, str) else [(s,) if isinstance(s, int) else tuple(s) for s in stops]
    if not chosen or not all(chosen):
        raise ProofError("a proof without a stop", "at least one boundary", "for example stops=[3, 5]")
    return chosen


def parse_stops(text: str) -> list[Stop]:
    """"3,7,8" is three runs stopped once each; "3+5+8" one run stopped three times. Raises ProofError."""
    try:
        return [tuple(int(part) for part in chain.split("+")) for chain in text.split(",") if chain.strip()]
    except ValueError:
        raise ProofError(f"stops {text!r}", "all, or numbers such as 3,7,8 or 3+5+8", "correct them") from None
