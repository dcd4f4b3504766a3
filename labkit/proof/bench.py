"""The folder of one proof, and the fresh processes that work in it. Lesson 04."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import processes
from labkit.errors import ProofError
from labkit.proof.compare import Difference, first_difference
from labkit.proof.job import Job
from labkit.records.lines import read_lines

Stop = tuple[int, ...]  # one boundary, or several in a chain: stopped at each of them in turn
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """One interrupted run: where it was stopped (attempts), and the first difference from the straight run."""

    stops: Stop
    compared: int  # boundaries after the stop
    difference: Difference | None

    @property
    def exact(self) -> bool:
        return self.difference is None


class Bench:
    """Runs straight, interrupted and continued processes of one recipe, and compares what they wrote down."""

    def __init__(
        self, place: Path, recipe: str, settings: Mapping[str, Any], jobs: int, progress: Progress
    ) -> None:
        self.place, self.recipe, self.settings, self.jobs = place, recipe, dict(settings), jobs
        self.progress = progress
        self.straight: list[dict[str, Any]] = []  # boundaries of the run that was never disturbed

    def run_straight(self) -> None:
        """The run without a single save."""
        self.progress("straight run")
        self.straight = self.run(self.start("straight"))

    def run_leader(self, stops: Sequence[int]) -> list[dict[str, Any]]:
        """A run that publishes at every stop and leaves its folder there, as an interruption would."""
        self.progress(f"interrupted run, {len(stops)} stops")
        return self.run(self.start("leader", stops={str(stop): self.stopped(stop) for stop in stops}))

    def run_both(self, stops: Sequence[int]) -> list[dict[str, Any]]:
        """The straight run and the leader side by side, where there are two jobs for them; the leader's boundaries."""
        with ThreadPoolExecutor(max_workers=min(self.jobs, 2)) as pool:
            straight = pool.submit(self.run_straight)
            leader = pool.submit(self.run_leader, stops)
            straight.result()
            return leader.result()

    def run_chains(self, chains: Sequence[Stop]) -> tuple[Row, ...]:
        """Every chain of stops continued, several side by side."""
        rows = []
        with ThreadPoolExecutor(max_workers=self.jobs) as pool:
            for row in pool.map(self.continued, chains):
                rows.append(row)
                self.progress(f"{len(rows)} of {len(chains)} stops continued")
        return tuple(rows)

    def continued(self, chain: Stop) -> Row:
        """One fresh process for each part of a chain; what came before the first stop was the leader's."""
        name = "-".join(f"{stop:06d}" for stop in chain)
        records: list[dict[str, Any]] = []
        folder = self.stopped(chain[0])
        for part, stop in enumerate(chain):
            following = chain[part + 1] if part + 1 < len(chain) else None
            own, after = self.path(f"chain-{name}-{part}"), self.path(f"chain-{name}-{part}-after")
            shutil.copytree(folder, own)
            stops = {} if following is None else {str(following): after}
            lines = self.run(Job("continue", own, f"{own}.jsonl", until=following, stops=stops))
            records = [line for line in records if line["attempt"] <= stop] + lines[bool(records) :]
            folder = after
        return Row(chain, len(records), self.difference_after(chain[0], records))

    def continue_copy(self, stop: int, name: str, **asked: Any) -> list[dict[str, Any]]:
        """A fresh process that continues a copy of the run stopped there, with further wishes of a Job."""
        own = self.path(name)
        shutil.copytree(self.stopped(stop), own)
        return self.run(Job("continue", own, f"{own}.jsonl", **asked))

    def difference_after(self, stop: int, records: list[dict[str, Any]]) -> Difference | None:
        """The first difference from the straight run; the restored boundary has digests but no record."""
        tail = [line for line in self.straight if line["attempt"] >= stop]
        tail[0] = {name: value for name, value in tail[0].items() if name in records[0]}
        return first_difference(tail, records)

    def start(self, name: str, **asked: Any) -> Job:
        """The job of a new run called name, with further wishes of a Job."""
        return Job("start", self.path(name), self.path(f"{name}.jsonl"), self.recipe, self.settings, **asked)

    def stopped(self, stop: int) -> str:
        """The folder of the run as an interruption there leaves it."""
        return self.path(f"stop-{stop:06d}")

    def path(self, name: str) -> str:
        return str(self.place / name)

    def run(self, job: Job) -> list[dict[str, Any]]:
        """A fresh process for the job; the boundaries that it wrote down. Raises ProofError with its last words."""
        file = Path(job.log).with_suffix(".job.json")
        job.write(file)
        done = processes.run("-m", "labkit.proof.child", str(file))
        if done.returncode != 0:
            raise ProofError(
                f"a process of the proof ({job.mode}) failed: {processes.last_words(done.stderr, done.returncode)}",
                "a recipe that runs, and resumes, without an error",
                "run it alone with `labkit train` to see the whole error",
            )
        return read_lines(job.log).records
