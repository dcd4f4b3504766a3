"""Two runs side by side: equal, or the first update and the first quantity that differ, with both values. Lesson 04."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit.checkpoint import CheckpointStore
from labkit.config import MAY_CHANGE
from labkit.errors import LabkitError, ProofError
from labkit.identity import mismatches
from labkit.records.attempts import read_attempts
from labkit.records.lines import read_lines
from labkit.run.folder import RunFolder
from labkit.state import digests

QUANTITIES = (
    "indices", "rates_used", "loss_sum", "loss_count", "grad_norm", "clipped", "update_norm", "skipped", "scale",
    "parameters", "buffers", "optimizer", "ema", "rates_next", "validation", "best", "without_improvement",
)  # fmt: skip
"""The order in which a difference at one attempt is reported: causes before effects."""

IGNORED = frozenset({"segment", "attempt"})
"""Recorded, but not part of the trajectory: in which process an attempt was made."""


@dataclass(frozen=True)
class Difference:
    """The first place where two runs part: at which attempt and committed update, which quantity, both values."""

    attempt: int
    update: int
    quantity: str
    left: Any
    right: Any

    def __str__(self) -> str:
        return f"update {self.update}: {self.quantity} differs first, {_short(self.left)} against {_short(self.right)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _place(name: str) -> tuple[int, str]:
    first = name.split(".")[0]
    return (QUANTITIES.index(first) if first in QUANTITIES else len(QUANTITIES), name)


def first_difference(
    left: Sequence[Mapping[str, Any]], right: Sequence[Mapping[str, Any]], ignore: Iterable[str] = IGNORED
) -> Difference | None:
    """The first attempt of two lists of records, and the first quantity there, that differ; None when all are equal.

    Records are matched by "attempt". A run that ends earlier differs in the quantity "length". nan equals nan, and
    floats are equal only in every bit.
    """
    first, second = merged(left), merged(right)
    for attempt in sorted(first.keys() | second.keys()):
        a, b = first.get(attempt), second.get(attempt)
        if a is None or b is None:
            present = a or b or {}
            ends = (max(first, default=0), max(second, default=0))
            return Difference(attempt, present.get("update", 0), "length", f"{ends[0]} attempts", f"{ends[1]} attempts")
        names = sorted((a.keys() | b.keys()) - set(ignore), key=_place)
        for name in names:
            if repr(a.get(name)) != repr(b.get(name)):
                return Difference(attempt, a.get("update", b.get("update", 0)), name, a.get(name), b.get(name))
    return None


def merged(records: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Lines by attempt; what an evaluation recorded joins the attempt after which it was made."""
    found: dict[int, dict[str, Any]] = {}
    for record in records:
        entry = found.setdefault(record["attempt"], {})
        for name, value in record.items():
            if name == "rates_next" and "validation" in record:
                entry["validation.rates_next"] = value  # a schedule on the validation clock moves after the attempt
            else:
                entry[name] = value
    return found


@dataclass(frozen=True)
class Comparison:
    """What compare() found. equal is True only if every recorded quantity and the last common state are equal."""

    left: str
    right: str
    equal: bool
    attempts: int  # compared
    difference: Difference | None
    state_equal_until: int | None  # the last common checkpoint in which every part is equal, by update
    state_differs_at: int | None
    state_parts: tuple[str, ...]  # the parts that differ there
    config: tuple[str, ...]  # identity fields that differ, with both values
    inexact: tuple[str, ...]  # runs that were continued under an override

    def __str__(self) -> str:
        lines = []
        if self.equal:
            seen = f", and the state at update {self.state_equal_until}" if self.state_equal_until is not None else ""
            lines.append(f"equal: {self.attempts} attempts in every recorded bit{seen}")
        elif self.difference is not None:
            lines.append(f"different: {self.difference}")
        else:
            lines.append("different: the recorded quantities are equal, the saved states are not")
        if self.state_differs_at is not None:
            last = self.state_equal_until
            since = "no equal one" if last is None else f"equal at update {last}"
            parts = ", ".join(self.state_parts)
            lines.append(f"checkpoints: {since}; at update {self.state_differs_at} differ {parts}")
        lines += [f"config: {text}" for text in self.config]
        lines += [f"note: {name} was continued under an override" for name in self.inexact]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def compare(left: Path | str, right: Path | str) -> Comparison:
    """Compare two run folders: trajectories attempt by attempt, then the checkpoints that both hold, part by part.

    Raises RunFolderError for something that is no run folder, ProofError when neither records nor states are there.
    """
    folders = RunFolder(Path(left)), RunFolder(Path(right))
    metas = [folder.read_meta() for folder in folders]
    records = [read_lines(folder.trajectory).records if folder.trajectory.exists() else [] for folder in folders]
    if not any(records) and not any(folder.checkpoints.is_dir() for folder in folders):
        raise ProofError("neither run holds a trajectory or a checkpoint", "two runs that have started", "")
    difference = first_difference(records[0], records[1])
    equal_until, differs_at, parts = _compare_states(folders, metas)
    config = mismatches({"config": metas[0]["config"]}, {"config": metas[1]["config"]})
    notable = [m for m in config if m.field.removeprefix("config.") not in MAY_CHANGE]
    return Comparison(
        left=folders[0].name, right=folders[1].name, equal=difference is None and differs_at is None,
        attempts=min(len(merged(lines)) for lines in records), difference=difference, state_equal_until=equal_until,
        state_differs_at=differs_at, state_parts=parts,
        config=tuple(f"{m.field.removeprefix('config.')} is {m.saved!r} and {m.present!r}" for m in notable),
        inexact=tuple(folder.name for folder in folders if _was_overridden(folder)),
    )  # fmt: skip


def _was_overridden(folder: RunFolder) -> bool:
    return any(attempt.begin.get("overrides") for attempt in read_attempts(folder.path))


def _compare_states(
    folders: tuple[RunFolder, RunFolder], metas: list[dict[str, Any]]
) -> tuple[int | None, int | None, tuple[str, ...]]:
    """(last equal common update, first differing one, its differing parts) over the checkpoints that both runs hold."""
    stores = [CheckpointStore(f.checkpoints, run_id=meta["run_id"]) for f, meta in zip(folders, metas, strict=True)]
    updates = [{entry.update for entry in store.list()} for store in stores]
    equal_until = None
    for update in sorted(updates[0] & updates[1]):
        try:
            payloads = [store.load(update).payload for store in stores]
        except LabkitError:  # a damaged checkpoint proves nothing either way; `labkit verify` names it
            continue
        if payloads[0]["counters"]["attempted"] != payloads[1]["counters"]["attempted"]:
            continue  # two boundaries of the same update, with a skipped attempt between them
        found = [digests(payload) for payload in payloads]
        differing = tuple(n for n in found[0] | found[1] if found[0].get(n) != found[1].get(n))
        if differing:
            return equal_until, update, differing
        equal_until = update
    return equal_until, None, ()
