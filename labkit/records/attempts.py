"""attempts.jsonl: what was tried, how it ended, and where it failed. Lesson 10.

An attempt at running is one process working in the run folder: begun by a start or a resume, ended in some way.
"""

from __future__ import annotations

import hashlib
import os
import platform
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.errors import RecordsError
from labkit.files import storage_errors, write_file
from labkit.records.lines import LineLog, read_lines
from labkit.records.stages import failure_stage
from labkit.records.values import FORMAT

NAME = "attempts.jsonl"
TEXT_FIELDS = ("name", "recipe", "question", "baseline", "guardrails", "next_decision", "status", "stage", "error")
ENDS = ("finished", "stopped", "interrupted", "failed")
"""How an attempt may end. A begun one without an end reads as "running" while its process lives, else "crashed"."""


def utc_now() -> str:
    """Time of day in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class AttemptLog:
    """Writes the beginning, remarks and the end of one attempt; every entry is on disk when the call returns.

    Errors are recorded by class and place, never by message: a message may quote a private example.
    """

    def __init__(self, folder: Path | str, now: Callable[[], str] = utc_now) -> None:
        self.folder, self._now = Path(folder), now
        self._number: int | None = None

    def begin(
        self,
        *,
        name: str,
        config: Mapping[str, Any],
        recipe: str = "",
        question: str = "",
        baseline: str = "",
        guardrails: str = "",
        next_decision: str = "",
        data: Mapping[str, Any] | None = None,
        model: Mapping[str, Any] | None = None,
        code: Mapping[str, Any] | None = None,
        parent: Mapping[str, Any] | str | None = None,
        overrides: Mapping[str, Any] | None = None,
        **facts: Any,
    ) -> int:
        """Record that an attempt starts; return its number (1, 2, ...).

        data, model and code say their versions (fingerprints, digests, revision; a "patch" in code goes to a file in
        patches/); parent is the checkpoint that is restored, None at a fresh start; overrides are the named exceptions
        to identity that the user granted.
        """
        if self._number is not None:
            raise RecordsError("this attempt has begun already", "one begin an attempt", "make a new AttemptLog")
        number = 1 + max((a.number for a in read_attempts(self.folder)), default=0)
        self._write(
            {
                "format": FORMAT,
                "kind": "begin",
                "number": number,
                "name": name,
                "recipe": recipe,
                "question": question,
                "baseline": baseline,
                "guardrails": guardrails,
                "next_decision": next_decision,
                "data": data,
                "model": model,
                "code": self._keep_patch(code),
                "config": config,
                "parent": parent,
                "overrides": overrides or {},
                "started": self._now(),
                "process": _process(os.getpid()),
            },
            facts,
        )
        self._number = number
        return number

    def remark(self, what: str, **facts: Any) -> None:
        """Record what happened in between: a fallback to an older checkpoint, a failed save, a publication."""
        self._write(
            {"format": FORMAT, "kind": "remark", "number": self._begun(), "what": what, "time": self._now()}, facts
        )

    def end(
        self,
        status: str,
        *,
        error: BaseException | None = None,
        stage: str | None = None,
        measured: Mapping[str, Any] | None = None,
        metric: Mapping[str, Any] | None = None,
        selected: Mapping[str, Any] | str | None = None,
        next_decision: str = "",
        **facts: Any,
    ) -> None:
        """Record how the attempt ended: status is one of ENDS; with an error also its stage, class and place.

        measured holds seconds, updates, peak memory (bytes) and throughput (per second); metric the primary metric as
        {"name", "sum", "count"}; selected the checkpoint that the run stands for.
        """
        if status not in ENDS:
            raise RecordsError(f"an attempt cannot end as {status!r}", "one of " + ", ".join(ENDS))
        stage = stage or (failure_stage(error) if error is not None else None)
        self._write(
            {
                "format": FORMAT,
                "kind": "end",
                "number": self._begun(),
                "status": status,
                "stage": stage,
                "error": type(error).__name__ if error is not None else None,
                "where": _place(error),
                "ended": self._now(),
                "measured": measured or {},
                "metric": metric,
                "selected": selected,
                "next_decision": next_decision,
            },
            facts,
        )
        self._number = None

    def _keep_patch(self, code: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """The patch goes to a file of its own, ready for `git apply`; attempts with the same one share it."""
        if code is None or not isinstance(text := code.get("patch"), str):
            return code
        facts: dict[str, Any] = {name: value for name, value in code.items() if name != "patch"}
        if text:
            data = text.encode(errors="surrogateescape")
            facts["patch_sha256"] = hashlib.sha256(data).hexdigest()
            facts["patch_file"] = f"patches/{facts['patch_sha256'][:16]}.patch"
            path = self.folder / facts["patch_file"]
            with storage_errors(f"write {path}"):
                path.parent.mkdir(exist_ok=True)
                if not path.exists() or path.read_bytes() != data:
                    path.unlink(missing_ok=True)
                    write_file(path, data)
        return facts

    def _begun(self) -> int:
        if self._number is None:
            raise RecordsError("no attempt has begun", "begin before remark and end", "call begin first")
        return self._number

    def _write(self, entry: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        if taken := entry.keys() & facts.keys():
            raise RecordsError(f"the extra fact {sorted(taken)[0]!r} has a name that labkit uses", "another name")
        with LineLog(self.folder / NAME) as log:  # opened for each entry: nothing stays open if the process is killed
            log.append({**entry, **facts})


@dataclass(frozen=True)
class Attempt:
    """One attempt as recorded: `status` is one of ENDS, "running" or "crashed"; begin and end are the raw entries."""

    number: int
    status: str
    begin: dict[str, Any]
    end: dict[str, Any] = field(default_factory=dict)
    remarks: tuple[dict[str, Any], ...] = ()

    @property
    def stage(self) -> str | None:
        """The stage in which it failed, if it did and lived to say so."""
        return self.end.get("stage")


def read_attempts(folder: Path | str) -> list[Attempt]:
    """The attempts of a run folder in order; [] without any. Raises RecordsError for a foreign or newer file."""
    begins, ends, remarks = dict[int, dict[str, Any]](), dict[int, dict[str, Any]](), dict[int, list[dict[str, Any]]]()
    path = Path(folder) / NAME
    for entry in read_lines(path, TEXT_FIELDS):
        kind, number = entry.get("kind"), entry.get("number")
        if not isinstance(number, int) or kind not in ("begin", "end", "remark"):
            raise RecordsError(
                f"{path} holds an entry that is neither begin, remark nor end",
                "attempts of labkit",
                "move the file aside if another program wrote it",
            )
        if kind == "begin":
            begins[number] = entry
        elif kind == "end":
            ends[number] = entry
        else:
            remarks.setdefault(number, []).append(entry)
    return [
        Attempt(
            n,
            ends[n]["status"] if n in ends else _unfinished(begins, n),
            begins.get(n, {}),
            ends.get(n, {}),
            tuple(remarks.get(n, ())),
        )
        for n in sorted(begins.keys() | ends.keys())
    ]


def _unfinished(begins: Mapping[int, dict[str, Any]], number: int) -> str:
    """A run folder has one process at a time, so only the newest attempt can still be running."""
    process = begins[number].get("process")
    alive = number == max(begins) and isinstance(process, dict) and process == _process(process.get("pid", 0))
    return "running" if alive else "crashed"


def _process(pid: int) -> dict[str, Any]:
    """What tells a process from a later one of the same number: host, boot and start time, where the system says."""
    facts: dict[str, Any] = {"pid": pid, "host": platform.node(), "started_ticks": None, "boot": None}
    try:
        facts["started_ticks"] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        facts["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (OSError, ValueError, IndexError):
        if pid != os.getpid():  # gone, or not to be told on this system: then it is not known to run
            return {}
    return facts


def _place(error: BaseException | None) -> str | None:
    """Innermost "file:line in function", without folders and without the message."""
    if error is None or error.__traceback__ is None:
        return None
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
