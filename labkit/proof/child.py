"""One fresh process of a proof: run or continue, write down every boundary. `python -m labkit.proof.child JOB`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from labkit import randomness
from labkit.loop import Attempt
from labkit.proof.job import Job
from labkit.proof.transplant import transplant, write_reachable
from labkit.records.lines import LineLog
from labkit.run import Session, resume, start
from labkit.state import digests


def main(path: str) -> int:
    """Do the job in the file; 0 when it was done."""
    job = Job.read(Path(path))
    randomness.seed_all("not the run's", int.from_bytes(os.urandom(6), "big"))  # only saved streams may win
    opened = start(job.recipe, job.folder, **job.settings) if job.mode == "start" else resume(job.folder)
    with opened as session, LineLog(job.log) as log:
        if job.transplant:
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
    status = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is closed and on disk. Taking down torch's threads at exit has been seen to abort a process now and
    # then ("terminate called without an active exception"), which would deny work that was done.
    os._exit(status)
