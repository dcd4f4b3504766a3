"""One run folder, read back: summary for the ledger, everything for `show`. Lesson 10.

Reading never changes a folder, so a read-only one is as good as any.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from labkit.errors import LabkitError, RecordsError, RunFolderError
from labkit.records.attempts import NAME as ATTEMPTS
from labkit.records.attempts import Attempt, read_attempts, utc_now
from labkit.records.lines import LineLog, read_lines
from labkit.records.tails import last_record
from labkit.records.values import FORMAT, revive

NOTES = "notes.jsonl"
NOTE_FIELDS = ("question", "baseline", "guardrails", "next_decision", "text")


def is_run_folder(folder: Path) -> bool:
    """Whether a run was begun here."""
    return (folder / ATTEMPTS).is_file() or ((folder / "config.json").is_file() and (folder / "checkpoints").is_dir())


def note(folder: Path | str, **fields: str) -> None:
    """Write down what people know about a run: question, baseline, guardrails, next_decision, text.

    Notes add up in notes.jsonl, and the newest of each field is shown. Raises RunFolderError when this is no run,
    RecordsError for an unknown field, StorageError when the disk refuses.
    """
    folder = Path(folder)
    if not is_run_folder(folder):
        raise RunFolderError(
            f"{folder} is not a run folder", "a folder with attempts.jsonl", "`labkit ledger` lists them"
        )
    if unknown := sorted(fields.keys() - set(NOTE_FIELDS)):
        raise RecordsError(f"a note has no field {unknown[0]!r}", "one of " + ", ".join(NOTE_FIELDS))
    with LineLog(folder / NOTES) as log:
        log.append({"format": FORMAT, "time": utc_now(), **fields})


@dataclass(frozen=True)
class Run:
    """A run folder. `name` is its path as the ledger shows it; a fault of its files is in `problem`, never raised."""

    folder: Path
    name: str

    @cached_property
    def _attempts(self) -> tuple[list[Attempt], str]:
        try:
            return read_attempts(self.folder), ""
        except (LabkitError, OSError) as error:
            return [], f"{type(error).__name__}: {str(error).replace(str(self.folder), self.name)}"

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts in order; [] when they cannot be read."""
        return self._attempts[0]

    @property
    def problem(self) -> str:
        """Why the attempts cannot be read; "" when they can."""
        return self._attempts[1]

    @property
    def status(self) -> str:
        """That of the newest attempt; "unreadable" or "no attempts" without one."""
        return self.attempts[-1].status if self.attempts else "unreadable" if self.problem else "no attempts"

    @cached_property
    def config(self) -> dict[str, Any]:
        """The newest config: that of the last attempt, or config.json."""
        if self.attempts and isinstance(config := self.attempts[-1].begin.get("config"), dict):
            return config
        stored = self._json("config.json")
        inner = stored.get("config", stored)
        return inner if isinstance(inner, dict) else {}

    @property
    def run_id(self) -> str:
        """The name that never changes, however often the folder is moved; "" for a folder that lost its config.json."""
        return str(self._json("config.json").get("run_id", ""))

    @cached_property
    def environment(self) -> dict[str, Any]:
        """environment.json, {} when there is none or it cannot be read."""
        return self._json("environment.json")

    @cached_property
    def notes(self) -> dict[str, str]:
        """The newest note of each field, over what the attempts said."""
        found = {
            field: attempt.begin[field]
            for attempt in self.attempts
            for field in NOTE_FIELDS
            if attempt.begin.get(field)
        }
        for attempt in self.attempts:
            if decision := attempt.end.get("next_decision"):
                found["next_decision"] = decision
        try:
            for entry in read_lines(self.folder / NOTES, NOTE_FIELDS):
                found |= {field: entry[field] for field in NOTE_FIELDS if entry.get(field)}
        except LabkitError as error:
            found["text"] = f"(notes cannot be read: {error.found.replace(str(self.folder), self.name)})"
        return found

    @cached_property
    def updates(self) -> int | None:
        """Committed updates: as the last end said, or, when there is none, from the end of the trajectory."""
        if self.attempts and isinstance(updates := self.attempts[-1].end.get("measured", {}).get("updates"), int):
            return updates
        try:
            last = last_record(self.folder / "trajectory.jsonl")
        except (LabkitError, OSError):
            return None
        return last.get("update") if last else None

    @property
    def metric(self) -> tuple[str, float | None]:
        """Name and mean of the primary metric that was last recorded; ("", None) without one."""
        for attempt in reversed(self.attempts):
            if isinstance(metric := attempt.end.get("metric"), dict):
                summed, count = metric.get("sum"), metric.get("count")
                return str(metric.get("name", "")), summed / count if count and summed is not None else None
        return "", None

    def summary(self) -> dict[str, Any]:
        """The facts of one line of the ledger, plain values."""
        last = self.attempts[-1] if self.attempts else Attempt(0, self.status, {})
        metric, value = self.metric
        return {
            "run": self.name, "status": self.status,
            "recipe": self.config.get("recipe") or last.begin.get("recipe", ""),
            "updates": self.updates, "metric": metric, "value": value, "attempts": len(self.attempts),
            "exact": all(not attempt.begin.get("overrides") for attempt in self.attempts),
            "stage": last.stage, "error": last.end.get("error"), "parent": last.begin.get("parent"),
            "selected": last.end.get("selected"),
            "started": self.attempts[0].begin.get("started") if self.attempts else None, "ended": last.end.get("ended"),
            "seconds": sum(float(a.end.get("measured", {}).get("seconds") or 0.0) for a in self.attempts),
            **{field: self.notes.get(field, "") for field in NOTE_FIELDS}, "problem": self.problem,
        }  # fmt: skip

    def __str__(self) -> str:
        return "\n".join(_shown(self))

    def _json(self, name: str) -> dict[str, Any]:
        try:
            value = revive(json.loads((self.folder / name).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level with dotted names; lists stay values."""
    if not isinstance(value, Mapping):
        return {prefix: value}
    out: dict[str, Any] = {}
    for name, entry in value.items():
        out |= flat(entry, f"{prefix}.{name}" if prefix else str(name))
    return out


def _shown(run: Run) -> list[str]:
    """A run as text, whole: what was asked, every attempt, config, environment, and what lies in the folder."""
    lines = [f"run {run.name}: {run.status}"]
    lines += [f"  {name}: {value}" for name, value in run.summary().items() if name not in ("run", "status") and value]
    for attempt in run.attempts:
        lines.append(f"attempt {attempt.number}: {attempt.status}")
        begin = {
            name: value for name, value in attempt.begin.items() if name not in ("config", "kind", "format", "number")
        }
        end = {name: value for name, value in attempt.end.items() if name not in ("kind", "format", "number")}
        lines += _block({**flat(begin), **flat(end)})
        lines += [f"  {r.get('time')} {r.get('what')}: {_facts(r)}" for r in attempt.remarks]
    lines += ["config", *_block(flat(run.config))]
    environment = flat({name: value for name, value in run.environment.items() if name not in ("packages", "format")})
    lines += ["environment", *_block({name: _short(value) for name, value in environment.items()})]
    lines += [f"  packages: {len(run.environment.get('packages') or ())}"]
    try:
        files = sorted(path for path in run.folder.rglob("*") if path.is_file())
        lines += [
            "files",
            *(f"  {path.relative_to(run.folder).as_posix()}: {path.stat().st_size} bytes" for path in files),
        ]
    except OSError as error:
        lines.append(f"files: {error.strerror}")
    return lines


def _block(facts: Mapping[str, Any]) -> list[str]:
    return [f"  {name}: {value}" for name, value in facts.items() if value not in (None, "", {}, [])]


def _facts(remark: Mapping[str, Any]) -> str:
    known = ("format", "kind", "number", "what", "time")
    return ", ".join(f"{name} {value}" for name, value in remark.items() if name not in known)


def _short(value: Any) -> Any:
    """A long text (a patch, a build description) by its size; it is whole in environment.json."""
    if isinstance(value, str) and "\n" in value:
        return f"{value.count(chr(10))} lines, in environment.json"
    return value
