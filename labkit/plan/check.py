"""A stored plan beside what happened. Lesson 08."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit.config import RunConfig, from_dict
from labkit.errors import ConfigError, PlanError
from labkit.plan.measure import Measured
from labkit.plan.planning import FORMAT, Counts, plan_key, timed_settings
from labkit.plan.words import duration, size
from labkit.records.attempts import read_attempts
from labkit.records.tails import last_record
from labkit.run.folder import RunFolder

WITHIN = 0.25


@dataclass(frozen=True)
class Check:
    """Planned and real, for the updates that were made. ratio is real over planned seconds."""

    planned_seconds: float
    real_seconds: float
    planned_updates: int
    real_updates: int
    ratio: float
    planned_peak_bytes: int | None
    real_peak_bytes: int | None
    planned_disk_bytes: int
    real_disk_bytes: int

    @property
    def within(self) -> bool:
        """Within 25% of the plan."""
        return abs(self.ratio - 1) <= WITHIN

    def __str__(self) -> str:
        word = "as planned" if self.within else "slower than planned" if self.ratio > 1 else "faster than planned"
        rows = [
            ("", "planned", "real"),
            ("updates", str(self.planned_updates), str(self.real_updates)),
            ("time of these", duration(self.planned_seconds), duration(self.real_seconds)),
            ("peak memory", _maybe(self.planned_peak_bytes), _maybe(self.real_peak_bytes)),
            ("disk", size(self.planned_disk_bytes), size(self.real_disk_bytes)),
        ]
        lines = [f"{name:<14}{planned:>12}{real:>12}" for name, planned, real in rows]
        return "\n".join([*lines, f"{self.real_updates} updates took {self.ratio:.2f} times the plan: {word}."])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "within": self.within}


def check(run: Path | str, plans: Path | str = "plans") -> Check:
    """Compare a run, ended or not, with its plan: plan.json in the run folder, or the one for its settings in `plans`.

    The plan is taken for the updates that the run has made, with the evaluations and saves that belong to them.
    Raises PlanError when there is no plan for these settings, or the run has made no update yet.
    """
    folder = RunFolder(Path(run))
    config = folder.read_config()
    stored = _find(folder, config, Path(plans))
    updates, seconds, peak = _real(folder)
    if not updates:
        raise PlanError(f"{folder.name} has made no update yet", "a run at work, or ended", "check again later")
    measured = Measured(**stored["measured"])
    planned = Counts.of(updates, config, config.save_every).seconds(measured)
    disk = sum(_bytes(path) for path in folder.path.rglob("*"))
    return Check(
        planned, seconds, int(stored["updates"]), updates, seconds / planned,
        stored["memory_bytes"].get("peak of process"), peak, int(stored["disk_bytes"]), disk,
    )  # fmt: skip


def _real(folder: RunFolder) -> tuple[int, float, int | None]:
    """Committed updates, seconds at work of all processes together, and the highest peak memory (bytes)."""
    ends = [attempt.end["measured"] for attempt in read_attempts(folder.path) if attempt.end.get("measured")]
    line = last_record(folder.signals) or {}
    found = [(end["updates"], end["seconds_used"], end.get("peak_memory_bytes")) for end in ends]
    if line:
        found.append((line["update"], line["seconds"], line.get("peak_memory_bytes")))
    if not found:
        return 0, 0.0, None
    updates, seconds, _ = max(found, key=lambda one: one[1])
    return int(updates), float(seconds), max((peak for *_, peak in found if peak is not None), default=None)


def _bytes(path: Path) -> int:
    """Size of a file; 0 for a folder, and for what a run at work has just removed."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _find(folder: RunFolder, config: RunConfig, plans: Path) -> dict[str, Any]:
    """The plan of these settings. Raises PlanError, saying what differs in the nearest plan when there is one."""
    key = plan_key(config)
    candidates = [folder.path / "plan.json", plans / f"{key}.json"]
    stored = [_read(path) for path in candidates if path.is_file()]
    for one in stored:
        if one["key"] == key:
            return one
    others = [*stored, *(_read(path) for path in sorted(plans.glob("*.json")))]
    differing = [_differing(one["settings"], config) for one in others if one["recipe"] == config.recipe]
    wanted = f"a plan with the settings of {folder.name} in {plans}"
    if not differing:
        raise PlanError(f"there is no plan for {folder.name}", wanted, f"make one: labkit plan {config.recipe} ...")
    nearest = min(differing, key=len)
    raise PlanError(
        f"there is no plan for {folder.name}; the nearest has " + ", ".join(nearest[:4]), wanted,
        "make a plan with these settings",
    )  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise PlanError(f"{path} has format {found['format']}", f"format {FORMAT}", "plan again with this labkit")
        Measured(**found["measured"]), found["key"], found["settings"], found["recipe"], found["memory_bytes"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlanError(
            f"{path} cannot be read ({type(error).__name__})", "a plan that `labkit plan` stored", "plan again"
        ) from error
    return dict(found)


def _differing(settings: Mapping[str, Any], config: RunConfig) -> list[str]:
    try:
        planned = from_dict(dict(settings))
    except ConfigError:
        return ["settings of another labkit"]
    left, right = timed_settings(planned), timed_settings(config)
    return [f"{name}={left.get(name)!r} (here {right[name]!r})" for name in right if left.get(name) != right[name]]


def _maybe(count: int | None) -> str:
    return "unknown" if count is None else size(count)
