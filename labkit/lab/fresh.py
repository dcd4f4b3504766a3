"""Continue a stopped run in fresh processes, with and without a piece of its state, and lay the runs side by side.

Lesson 00 does it for real, in two new processes; its slider then uses a rehearsal in memory. Both become the same plot.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from labkit import processes
from labkit.errors import ProofError
from labkit.lab import resume_child
from labkit.lab.plots.start_here import FirstResume
from labkit.proof.rehearse import Rehearsal
from labkit.records.lines import read_lines
from labkit.run import RunFolder, start

LOGGED = ("indices", "rates_used", "loss_sum", "loss_count", "grad_norm")
"""What a training log shows of an update: which examples, at which rate, their loss and its gradient's norm."""


@dataclass(frozen=True, eq=False)
class Followed:
    """One run that was watched: its folder, its records from update 1 on, and what Watch saw of the last ones.

    probe, parameters: one entry for each update that the watched process made; first is the first of them.
    """

    folder: Path
    records: list[dict[str, Any]] = field(repr=False)
    first: int
    probe: np.ndarray = field(repr=False)
    parameters: np.ndarray = field(repr=False)
    process: int


def train(recipe: str, folder: Path, updates: int, **settings: Any) -> Followed:
    """Start a run in this process, train it to its target, and watch it."""
    with start(recipe, folder, updates=updates, **settings) as session:
        watch = resume_child.Watch(session)
        session.train()
    return _followed(folder, watch.probe, watch.parameters, os.getpid())


def continued(stopped: Path, updates: int, lost: Mapping[str, Sequence[str]]) -> list[Followed]:
    """Continue copies of a stopped run, each in a new Python process, all at the same time.

    lost: name of the copy (a folder beside `stopped`) -> pieces of the state to leave out (names of proof.PIECES).
    Raises ProofError with the last words of a process that failed.
    """
    jobs = [_begin(stopped, stopped.with_name(name), updates, pieces) for name, pieces in lost.items()]
    return [_finish(*job) for job in jobs]


def _begin(stopped: Path, copy: Path, updates: int, pieces: Sequence[str]) -> tuple[Path, subprocess.Popen[str]]:
    shutil.copytree(stopped, copy)
    job = copy.with_suffix(".json")
    asked = {"folder": str(copy), "updates": updates, "lost": list(pieces), "out": str(copy.with_suffix(".npz"))}
    job.write_text(json.dumps(asked), encoding="utf-8")
    return copy, processes.begin("-P", str(Path(resume_child.__file__).resolve()), str(job))


def _finish(copy: Path, process: subprocess.Popen[str]) -> Followed:
    said = process.communicate()[1]
    if process.returncode != 0:
        raise ProofError(
            f"the process that continued {copy.name} failed: {processes.last_words(said, process.returncode)}",
            "a run that resumes",
            "resume the folder in this process with labkit.run.resume to see the whole error",
        )
    with np.load(copy.with_suffix(".npz")) as seen:
        return _followed(copy, seen["probe"], seen["parameters"], process.pid)


def _followed(folder: Path, probe: Any, parameters: Any, process: int) -> Followed:
    records = [r for r in read_lines(RunFolder(folder).trajectory).records if "loss_sum" in r]
    return Followed(folder, records, len(records) - len(probe) + 1, np.asarray(probe), np.asarray(parameters), process)


def side_by_side(
    straight: Followed, resumed: Followed, lost: str, *, first: int = 1, band: np.ndarray | None = None,
    guess: Any = None,
) -> FirstResume:  # fmt: skip
    """Two watched runs as the data of the plot, from update `first` on; the resumed one was watched after its stop.

    band: probe losses of other seeds, shape (seeds, updates), from update 1 on. A guess that is no update is not drawn.
    """
    stop = resumed.first - 1
    probe = np.concatenate([straight.probe[:stop], resumed.probe])
    equal = _equal_rows(straight.parameters[stop:], resumed.parameters)
    left, right = (straight.records, straight.probe), (resumed.records, probe)
    return _data(stop, lost, left, right, equal, first, band, guess)


def rehearsed(rehearsal: Rehearsal, stop: int, lost: str, *, first: int = 1, guess: Any = None) -> FirstResume:
    """A resume of a rehearsal as the data of the plot; lost: a name of proof.PIECES, or "nothing"."""
    found = rehearsal.resumed(stop, [] if lost == "nothing" else [lost])
    before = rehearsal.straight
    records = [*before.records[:stop], *found.track.records]
    probe = np.concatenate([before.probe[:stop], found.track.probe])
    left, right = (before.records, np.array(before.probe)), (records, probe)
    band = rehearsal.band()
    return _data(stop, lost, left, right, found.distance == 0, first, band if len(band) else None, guess)


Run = tuple[Sequence[Mapping[str, Any]], np.ndarray]
"""Records from update 1 on, and the probe loss after each."""


def _data(
    stop: int, lost: str, straight: Run, resumed: Run, weights_equal: np.ndarray, first: int, band: np.ndarray | None,
    guess: Any,
) -> FirstResume:  # fmt: skip
    since = slice(first - 1, None)
    pairs = list(zip(straight[0], resumed[0], strict=True))[since]
    logged = [[record["loss_sum"] / record["loss_count"] for record in run[0]][since] for run in (straight, resumed)]
    low, high = (None, None) if band is None else (band.min(axis=0)[since], band.max(axis=0)[since])
    return FirstResume(
        stop=stop, lost=lost, updates=np.arange(first, first + len(pairs)), straight=straight[1][since],
        resumed=resumed[1][since], straight_logged=np.array(logged[0]), resumed_logged=np.array(logged[1]),
        log_equal=np.array([all(repr(a[name]) == repr(b[name]) for name in LOGGED) for a, b in pairs]),
        weights_equal=np.concatenate([np.ones(stop, dtype=bool), weights_equal])[since], band_low=low, band_high=high,
        seeds=0 if band is None else len(band), guess=guess if isinstance(guess, int) else None,
    )  # fmt: skip


def _equal_rows(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.array([a.tobytes() == b.tobytes() for a, b in zip(left, right, strict=True)])
