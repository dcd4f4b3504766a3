"""Prove that a recipe resumes exactly: a straight run, and for each stop one continued in a fresh process. Lesson 04.

What is shared, honestly: the interrupted halves. One process runs straight without a single save; another publishes at
every stop, and its folder is copied there, as an interruption would leave it. If publishing changed anything, that
second process would differ from the first, and the proof says so.
"""

from __future__ import annotations

import html
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from labkit.config import MAY_CHANGE, RunConfig
from labkit.errors import ProofError
from labkit.proof.child import Job
from labkit.proof.compare import Difference, first_difference
from labkit.recipe import resolve
from labkit.recipes import find
from labkit.records.lines import read_lines
from labkit.run import check_target

Stop = tuple[int, ...]  # one boundary, or several in a chain: stopped at each of them in turn


@dataclass(frozen=True)
class Row:
    """One interrupted run: where it was stopped (attempts), and the first difference from the straight run."""

    stops: Stop
    compared: int  # boundaries after the stop
    difference: Difference | None

    @property
    def exact(self) -> bool:
        return self.difference is None


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
        result = bench.prove(config, stops)
        if not result.exact and diagnose:
            from labkit.proof.diagnose import diagnose as look

            missing, unseen = look(bench, result)
            result = replace(result, missing=tuple(missing), unseen=tuple(unseen))
        return result


def _settings(config: RunConfig) -> dict[str, Any]:
    """Every resolved value as start() takes it; nothing is saved but at the stops."""
    values = config.to_dict()
    options = values.pop("options")
    values.pop("recipe")
    return {**options, **values, "save_every": 0, "save_seconds": None, "save_epoch_end": False}


class Bench:
    """The folder of one proof and the processes that work in it."""

    def __init__(
        self, place: Path, recipe: str, settings: Mapping[str, Any], jobs: int, progress: Callable[[str], None]
    ) -> None:
        self.place, self.recipe, self.settings, self.jobs = place, recipe, dict(settings), jobs
        self.progress = progress
        self.straight: list[dict[str, Any]] = []

    def prove(self, config: RunConfig, stops: str | Sequence[int | Stop]) -> Proof:
        self.progress("straight run")
        straight = Job("start", self.path("straight"), self.path("straight.jsonl"), self.recipe, self.settings)
        self.straight = self.run(straight)
        last = self.straight[-1]["attempt"]
        chains = _chains(stops, last)
        firsts = sorted({chain[0] for chain in chains})
        self.progress(f"interrupted run, {len(firsts)} stops")
        leader = self.run(
            Job(
                "start", self.path("leader"), self.path("leader.jsonl"), self.recipe, self.settings,
                stops={str(stop): self.path(f"stop-{stop:06d}") for stop in firsts},
            )
        )  # fmt: skip
        saving = first_difference(self.straight, leader)
        with ThreadPoolExecutor(max_workers=self.jobs) as pool:
            rows = tuple(self._counted(pool.map(self.continued, chains), len(chains)))
        return Proof(
            self.recipe, {k: v for k, v in self.settings.items() if k not in MAY_CHANGE}, self.straight[-1]["update"],
            len(self.straight), rows, saving,
        )  # fmt: skip

    def _counted(self, rows: Iterable[Row], total: int) -> Iterable[Row]:
        for number, row in enumerate(rows, 1):
            self.progress(f"{number} of {total} stops continued")
            yield row

    def continued(self, chain: Stop) -> Row:
        """One process for each part of a chain; the first part was run by the leader."""
        name = "-".join(f"{stop:06d}" for stop in chain)
        records: list[dict[str, Any]] = []
        folder = self.path(f"stop-{chain[0]:06d}")
        for part, stop in enumerate(chain):
            following = chain[part + 1] if part + 1 < len(chain) else None
            own = self.path(f"chain-{name}-{part}")
            self.copy(folder, own)
            after = self.path(f"chain-{name}-{part}-after")
            job = Job(
                "continue", own, self.path(f"chain-{name}-{part}.jsonl"), until=following,
                stops={} if following is None else {str(following): after},
            )  # fmt: skip
            lines = self.run(job)
            records = [line for line in records if line["attempt"] <= stop] + lines[bool(records) :]
            folder = after
        return Row(chain, len(records), self.difference_after(chain[0], records))

    def difference_after(self, stop: int, records: list[dict[str, Any]]) -> Difference | None:
        """The first difference from the straight run on; the restored boundary has digests but no record."""
        tail = [line for line in self.straight if line["attempt"] >= stop]
        tail[0] = {name: value for name, value in tail[0].items() if name in records[0]}
        return first_difference(tail, records)

    def path(self, name: str) -> str:
        return str(self.place / name)

    def copy(self, source: str, target: str) -> None:
        shutil.copytree(source, target)

    def run(self, job: Job) -> list[dict[str, Any]]:
        """A fresh process for the job; the boundaries that it wrote down. Raises ProofError with its last words."""
        file = Path(job.log).with_suffix(".job.json")
        job.write(file)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(_search_path())}
        done = subprocess.run(
            [sys.executable, "-m", "labkit.proof.child", str(file)], capture_output=True, text=True, env=env,
            start_new_session=os.name == "posix", stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode != 0:
            words = done.stderr.strip().splitlines()
            raise ProofError(
                f"a process of the proof ({job.mode}) failed: {words[-1] if words else f'status {done.returncode}'}",
                "a recipe that runs, and resumes, without an error",
                "run it alone with `labkit train` to see the whole error",
            )
        return read_lines(job.log).records


def _search_path() -> list[str]:
    """Where this process finds labkit and the user's modules, for a process that starts in the same folder."""
    return [str(Path(__file__).resolve().parents[2]), *(path for path in sys.path if path)]


def _chains(stops: str | Sequence[int | Stop], last: int) -> list[Stop]:
    if stops == "all":
        return [(stop,) for stop in range(last + 1)]
    chosen = parse_stops(stops) if isinstance(stops, str) else [(s,) if isinstance(s, int) else tuple(s) for s in stops]
    for chain in chosen:
        if not chain or list(chain) != sorted(set(chain)) or not 0 <= chain[0] <= chain[-1] <= last:
            raise ProofError(f"a stop at {'+'.join(map(str, chain))}", f"rising boundaries from 0 to {last}", "")
    return chosen


def parse_stops(text: str) -> list[Stop]:
    """"3,7,8" is three runs stopped once each; "3+5+8" one run stopped three times. Raises ProofError."""
    try:
        return [tuple(int(part) for part in chain.split("+")) for chain in text.split(",") if chain.strip()]
    except ValueError:
        raise ProofError(f"stops {text!r}", "all, or numbers such as 3,7,8 or 3+5+8", "correct them") from None
