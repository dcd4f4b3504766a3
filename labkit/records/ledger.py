"""The ledger: a view over all run folders below a directory. No second truth, nothing to lock. Lesson 10."""

from __future__ import annotations

import csv
import html
import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from labkit.errors import RecordsError, RunFolderError
from labkit.files import file_digests, file_sha256, write_text_durably
from labkit.records.compare import RunDiff, diff_runs
from labkit.records.runs import Run, flat, is_run_folder, note
from labkit.records.values import encode

SHOWN = ("run", "status", "recipe", "updates", "metric", "value", "attempts", "stage", "question", "next_decision")
"""Columns of the tables for people: those that are the same on every machine and at every time of day."""


@dataclass(frozen=True)
class Made:
    """A run that made a file, and the entry (a manifest, a record file) that says so."""

    run: Run
    evidence: str

    def __str__(self) -> str:
        return f"{self.run.name}: {self.evidence}"


class Ledger:
    """The runs below a folder, by name, as they are now. `Ledger("runs")` in a notebook shows a table.

    A folder that cannot be read is listed with its problem; nothing is hidden and nothing is written.
    """

    def __init__(self, folder: Path | str, _runs: Sequence[Run] | None = None) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise RunFolderError(f"there is no folder {self.folder}", "a folder with runs below it", "check the path")
        self.runs: list[Run] = (
            list(_runs) if _runs is not None else sorted(_find(self.folder), key=lambda r: _key(r.name))
        )

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __getitem__(self, name: str) -> Run:
        """A run by its name in the ledger, or by its path."""
        for run in self.runs:
            if run.name == name or run.folder == Path(name):
                return run
        if is_run_folder(Path(name)):
            return Run(Path(name), Path(name).name)
        names = ", ".join(run.name for run in self.runs[:5]) + (", ..." if len(self.runs) > 5 else "")
        raise RunFolderError(f"no run is called {name!r}", f"one of {names}" if names else "a run folder")

    def where(self, **wanted: Any) -> Ledger:
        """The runs for which every named fact or config value fits: where(status="failed", rate=0.1, run="a/*").

        Text may hold * and ?; a value given as text also fits the number that it spells. Raises RecordsError for a name
        that no run knows.
        """
        facts = [(run, {**_config_of(run), **run.summary()}) for run in self.runs]
        for name in wanted:
            if facts and not any(name in known for _, known in facts):
                raise RecordsError(f"no run has a fact called {name!r}", "a column of the table or a config field")
        fits = [run for run, known in facts if all(_fits(known.get(name), value) for name, value in wanted.items())]
        return Ledger(self.folder, fits)

    def table(self) -> list[dict[str, Any]]:
        """One mapping a run, plain values, for further use."""
        return [run.summary() for run in self.runs]

    def to_json(self, path: Path | str | None = None) -> str:
        """The table as JSON (numbers that are not finite as words); written to `path` when given."""
        return _written("[" + ",\n ".join(encode(row) for row in self.table()) + "]\n", path)

    def to_csv(self, path: Path | str | None = None) -> str:
        """The table as CSV with a header; mappings in a cell are JSON; written to `path` when given."""
        rows, out = self.table(), io.StringIO()
        names = list(Run(self.folder, "").summary()) if not rows else list(rows[0])
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: encode(v) if isinstance(v, dict) else v for name, v in row.items()})
        return _written(out.getvalue(), path)

    def show(self, name: str) -> str:
        """Everything recorded about one run, as text."""
        return str(self[name])

    def diff(self, a: str, b: str) -> RunDiff:
        """What changed between two runs in config, data, code and environment."""
        return diff_runs(self[a], self[b])

    def note(self, name: str, **fields: str) -> None:
        """Add question, baseline, guardrails, next_decision or text to a run."""
        note(self[name].folder, **fields)

    def made(self, file: Path | str) -> list[Made]:
        """The runs that made this file or checkpoint folder: wherever it lies now, its digest is in their records.

        Raises RecordsError for a file that is not there. [] means: no run of this ledger recorded these bytes.
        """
        path = Path(file)
        for inside in ("state.pt", "artefact.json"):
            if path.is_dir() and (path / inside).is_file():
                path = path / inside
        if not path.is_file():
            raise RecordsError(f"there is no file {path}", "a file or a checkpoint folder")
        whole, pieces = file_sha256(path), file_digests(path, path.stat().st_size)
        maker = _run_of_export(path, whole)
        return [Made(run, evidence) for run in self.runs for evidence in _evidence(run, path, whole, pieces, maker)]

    def __str__(self) -> str:
        rows = [[_text(row[name]) for name in SHOWN] for row in self.table()]
        widths = [max(len(name), *(len(row[i]) for row in rows), 0) for i, name in enumerate(SHOWN)]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in [SHOWN, *rows]
        ]
        problems = [f"{run.name}: {run.problem}" for run in self.runs if run.problem]
        return "\n".join([*lines, f"{len(rows)} runs", *problems])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in SHOWN)
        rows = [
            "<tr>" + "".join(f"<td>{html.escape(_text(row[name]))}</td>" for name in SHOWN) + "</tr>"
            for row in self.table()
        ]
        problems = "".join(
            f"<p>{html.escape(run.name)}: {html.escape(run.problem)}</p>" for run in self.runs if run.problem
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        return f"{table}<p>{len(rows)} runs</p>{problems}"


def _find(top: Path) -> Iterator[Run]:
    """Run folders at or below `top`; one run is not looked for inside another, and links are not followed."""
    waiting = [(top, "")]
    while waiting:
        folder, name = waiting.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            if folder == top:
                raise RunFolderError(f"{folder} cannot be read: {error.strerror}", "a readable folder") from error
            yield Run(folder, name)  # its problem is told when it is read
            continue
        names = {entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)}
        if names & {"attempts.jsonl", "config.json"} and is_run_folder(folder):
            yield Run(folder, name or folder.resolve().name)
            continue
        below = (entry for entry in entries if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False))
        waiting += [(Path(entry.path), f"{name}/{entry.name}" if name else entry.name) for entry in below]


def _key(name: str) -> list[tuple[int, str]]:
    """Sorts run-2 before run-10; text stands at even places, so that like is compared with like."""
    return [(int(part), "") if place % 2 else (0, part) for place, part in enumerate(re.split("([0-9]+)", name))]


def _config_of(run: Run) -> dict[str, Any]:
    options = run.config.get("options")
    return {**run.config, **(options if isinstance(options, dict) else {})}


def _fits(value: Any, wanted: Any) -> bool:
    if value == wanted:
        return True
    if not isinstance(wanted, str):
        return False
    if isinstance(value, str):
        return fnmatchcase(value, wanted)
    try:
        return bool(value is not None and json.loads(wanted.lower()) == value)
    except ValueError:
        return str(value).lower() == wanted.lower()


def _text(value: Any) -> str:
    """A cell: six digits are enough to compare by eye, and a newline would break the table."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())


def _written(text: str, path: Path | str | None) -> str:
    if path is not None:
        write_text_durably(Path(path), text)
    return text


def _run_of_export(path: Path, whole: str) -> set[str]:
    """run_id of the runs that an exported file came from, as the artefact.json beside it says; it lists the file."""
    try:
        about = json.loads((path.parent / "artefact.json").read_text(encoding="utf-8"))
        listed = path.name == "artefact.json" or about["files"][path.name]["sha256"] == whole
        facts = flat(about["provenance"]) if listed else {}
        return {value for name, value in facts.items() if name.rpartition(".")[2] == "run_id"}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _evidence(run: Run, path: Path, whole: str, pieces: list[str], maker: set[str]) -> Iterator[str]:
    """Where the run's manifests and attempts name these bytes, by one digest or by those of the pieces."""
    if maker and run.run_id in maker:
        yield "artefact.json beside the file"
    if run.folder.resolve() in path.resolve().parents:
        yield path.resolve().relative_to(run.folder.resolve()).as_posix()
    for manifest in sorted(run.folder.rglob("*manifest*.json")):
        try:
            text = manifest.read_text(encoding="utf-8", errors="replace")
            found = (whole in text or pieces[0] in text) and _names(json.loads(text), whole, pieces)
        except (OSError, ValueError):
            continue  # a manifest that cannot be read vouches for nothing
        if found:
            yield manifest.relative_to(run.folder).as_posix()
    for attempt in run.attempts:
        if any(_names(entry, whole, pieces) for entry in (attempt.end, *attempt.remarks)):
            yield f"attempt {attempt.number}"


def _names(value: Any, whole: str, pieces: list[str]) -> bool:
    if isinstance(value, dict):
        return any(_names(entry, whole, pieces) for entry in value.values())
    if isinstance(value, list):
        return value == pieces or any(_names(entry, whole, pieces) for entry in value if not isinstance(entry, str))
    return bool(value == whole)
