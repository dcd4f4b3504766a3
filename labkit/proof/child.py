"""One fresh process of a proof: run or continue, write down every boundary. `python -m labkit.proof.child JOB`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from labkit import randomness
from labkit.loop import Attempt
from labkit.records.lines import LineLog
from labkit.run import Session, resume, start
from labkit.state import digests


@dataclass(frozen=True)
class Job:
    """One process: mode "start" begins a run, "continue" resumes one, both write `log`; copies are taken at `stops`.

    Boundaries are counted in attempts, which are updates unless an attempt was skipped. until ends a part of a chain.
    """

    mode: str
    folder: str
    log: str
    recipe: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    stops: dict[str, str] = field(default_factory=dict)  # boundary -> folder that receives a copy of the run there
    until: int | None = None
    look: list[int] = field(default_factory=list)  # boundaries at which reachable attributes are listed
    look_log: str = ""
    transplant: str = ""  # file of values to put into the recipe's objects after the resume

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def main(path: str) -> int:
    """Do the job in the file; 0 when it was done."""
    job = Job.read(Path(path))
    randomness.seed_all("not the run's", int.from_bytes(os.urandom(6), "big"))  # only saved streams may win
    opened = start(job.recipe, job.folder, **job.settings) if job.mode == "start" else resume(job.folder)
    with opened as session, LineLog(job.log) as log:
        if job.transplant:
            from labkit.proof.diagnose import transplant

            transplant(session.parts, Path(job.transplant))
        follow(session, lambda record: _note(session, record, log, job), job.until)
    return 0


def follow(session: Session, note: Callable[[Attempt | None], None], until: int | None) -> None:
    """Run to the end, telling of every boundary after its evaluation and decision; the first one has no record."""
    session.boundary()
    note(None)
    while session.ending() is None and (until is None or session.state.counters.attempted < until):
        record = session.attempt()
        session.boundary()
        note(record)


def _note(session: Session, record: Attempt | None, log: LineLog, job: Job) -> None:
    saved = session.capture()
    attempt = session.state.counters.attempted
    best = session.state.best
    line = {"attempt": attempt, "update": session.update} if record is None else asdict(record)
    log.append({**line, **digests(saved), "best_value": best.value})
    if str(attempt) in job.stops:
        session.publish("stop of a proof")
        _copy(session, Path(job.stops[str(attempt)]))
    if attempt in job.look:
        from labkit.proof.diagnose import write_reachable

        write_reachable(session.parts, attempt, Path(job.look_log))


def _copy(session: Session, target: Path) -> None:
    """The run folder as an interruption at this boundary would leave it, with one checkpoint."""
    source = session.folder
    target.mkdir(parents=True)
    for item in source.path.iterdir():
        if item.is_file() and not item.name.startswith("lock"):
            shutil.copy2(item, target / item.name)
    newest = session.store.newest().path
    shutil.copytree(newest, target / "checkpoints" / newest.name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
