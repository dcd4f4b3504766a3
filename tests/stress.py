"""Kill real training runs at random moments, resume them to the end, and compare each with the run nobody disturbed.

    python3 workbook.py stress --kills 1000 --seconds 7200

Every victim is a process of its own with its workers, hit by SIGKILL, by SIGTERM, or by two SIGINTs in a row, at a
moment drawn evenly over its life: while it imports, builds, restores, updates, evaluates, publishes or clears up. A
*lost commit* is a checkpoint that could be seen when the victim died and that the next process did not start from. A
*divergence* is a finished run that is not equal, bit for bit, to the straight one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from labkit.checkpoint import CheckpointStore
from labkit.proof import compare
from labkit.run import verify

ROOT = Path(__file__).resolve().parents[1]

RECIPES: dict[str, list[str]] = {
    "mlp": ["digits", "updates=600", "save_every=3", "eval_every=20", "ema_decay=0.9", "max_norm=1"],
    "conv, augmented, workers": [
        "digits", "network=conv", "augment=true", "updates=150", "workers=2", "start_method=fork", "save_every=2",
        "eval_every=10", "microbatch_size=40,24",
    ],
    "names, fp16, background": [
        "names", "updates=500", "precision=fp16", "growth_interval=5", "save=background", "save_every=2",
        "schedule=plateau", "schedule_clock=validation", "schedule_interval=1", "eval_every=50",
    ],
}  # fmt: skip


@dataclass
class Report:
    """What happened, as counts."""

    kills: dict[str, int] = field(default_factory=dict)
    resumes: int = 0
    finished: int = 0
    lost: list[str] = field(default_factory=list)
    divergences: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.kills.values())

    def clean(self) -> bool:
        return not (self.lost or self.divergences or self.faults)


class Ward:
    """One recipe's victims: a straight run to compare with, and runs that are killed until they reach the target."""

    def __init__(self, name: str, folder: Path, seed: int, deadline: float) -> None:
        self.name, self.folder, self.draw, self.deadline = name, folder, random.Random(seed), deadline
        self.report = Report()
        self.straight = folder / "straight"
        self.life = 5.0  # seconds from start to end of an undisturbed process, measured below

    def work(self, kills: int) -> Report:
        """Runs until so many kills were made or the deadline passed; the run in hand is always finished."""
        self.folder.mkdir(parents=True)
        began = time.monotonic()
        done = self._process(self.straight)
        done.communicate()
        if done.returncode != 0:
            self.report.faults.append(f"{self.name}: the straight run ended with status {done.returncode}")
            return self.report
        self.life = time.monotonic() - began
        number = 0
        while self.report.total < kills and time.monotonic() < self.deadline:
            self._victim(self.folder / f"victim-{number}", kills)
            number += 1
        return self.report

    def _process(self, run: Path) -> subprocess.Popen[str]:
        recipe, *settings = RECIPES[self.name]
        command = [sys.executable, "-m", "labkit"]
        if (run / "config.json").exists():
            command += ["resume", str(run)]
        else:
            command += ["train", recipe, "--run", str(run), "--set", *settings]
        return subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    def _victim(self, run: Path, kills: int) -> None:
        for _ in range(60):
            seen = _newest(run)
            process = self._process(run)
            self.report.resumes += seen is not None
            how = None
            if self.report.total < kills and time.monotonic() < self.deadline:
                how = self._strike(process)
            _, words = process.communicate(timeout=300)
            self._look_after(run, seen, process, how, words)
            if how is None:
                break
        self._compare(run)

    def _strike(self, process: subprocess.Popen[str]) -> str | None:
        """Wait a random part of a life, then strike; None when the process had ended before."""
        try:
            process.wait(self.draw.uniform(0.05, self.life))
            return None
        except subprocess.TimeoutExpired:
            how = self.draw.choices(["SIGKILL", "SIGTERM", "SIGINT twice"], [6, 2, 2])[0]
        if how == "SIGINT twice":
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(self.draw.uniform(0, 0.2))
        number = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM}.get(how, signal.SIGINT)
        try:
            # A SIGKILL hits the trainer alone: its workers have to notice by themselves.
            (os.kill if how == "SIGKILL" else os.killpg)(process.pid, number)
        except ProcessLookupError:
            return None
        self.report.kills[how] = self.report.kills.get(how, 0) + 1
        return how

    def _look_after(
        self, run: Path, seen: int | None, process: subprocess.Popen[str], how: str | None, words: str
    ) -> None:
        """Every checkpoint that can be seen must be good, and none seen before may be gone for an older one."""
        _wait_for_orphans(process.pid, self.report, self.name)
        if how is None and process.returncode != 0:
            last = (words.strip().splitlines() or [""])[-1]
            self.report.faults.append(f"{self.name}: status {process.returncode} without a kill: {last}")
        now = _newest(run)
        if seen is not None and (now is None or now < seen):
            self.report.lost.append(f"{self.name}: update {seen} was there before {how}, {now} after")
        if now is not None:
            bad = [row for row in verify(run) if row.reason is not None]
            self.report.lost += [f"{self.name}: {row.path.name} after {how}: {row.reason}" for row in bad]

    def _compare(self, run: Path) -> None:
        found = compare(self.straight, run)
        self.report.finished += 1
        if not found.equal:
            self.report.divergences.append(f"{self.name} {run.name}: {found}")


def _newest(run: Path) -> int | None:
    entries = CheckpointStore(run / "checkpoints").list() if (run / "checkpoints").is_dir() else []
    return entries[0].update if entries else None


def _wait_for_orphans(group: int, report: Report, name: str) -> None:
    """Workers of a dead trainer end by themselves; whoever is left after ten seconds is a fault, and is ended."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    report.faults.append(f"{name}: processes of a dead trainer are alive after 10 s")
    os.killpg(group, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"), help="of the moments")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if os.name != "posix":
        print("stress: signals of this kind need Linux or macOS; nothing was tried", file=sys.stderr)
        return 2
    deadline = time.monotonic() + asked.seconds
    share = -(-asked.kills // len(RECIPES))
    with tempfile.TemporaryDirectory(prefix="labkit-stress-") as place, ThreadPoolExecutor(2) as pool:
        wards = [
            Ward(name, Path(place) / f"ward-{number}", asked.seed + number, deadline)
            for number, name in enumerate(RECIPES)
        ]
        reports = dict(zip(RECIPES, pool.map(lambda ward: ward.work(share), wards), strict=True))
    total = sum(report.total for report in reports.values())
    bad = [text for report in reports.values() for text in (*report.lost, *report.divergences, *report.faults)]
    if asked.json:
        print(json.dumps({name: vars(report) for name, report in reports.items()}))
    for name, report in reports.items():
        print(f"{name}: {report.kills}, {report.resumes} resumes, {report.finished} runs finished")
    print(f"seed {asked.seed}: {total} kills, {sum(len(r.lost) for r in reports.values())} lost commits, "
          f"{sum(len(r.divergences) for r in reports.values())} divergences")  # fmt: skip
    for text in bad:
        print(f"FAULT {text}")
    return 0 if total and not bad else 1


if __name__ == "__main__":
    sys.exit(main())
