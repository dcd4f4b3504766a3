"""Which checks a learner has passed: one small file in the learner's own folder, never sent anywhere. Lesson 00."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FOLDER, FILE = "my_lessons", "passed.json"


def store() -> Path | None:
    """The file of passed checks, when this process works inside my_lessons; None elsewhere and under CI."""
    if os.environ.get("CI"):
        return None
    here = Path.cwd()
    for folder in (here, *here.parents):
        if folder.name == FOLDER:
            return folder / FILE
    return None


def remember(lesson: str, exercise: str) -> None:
    """Note a passed check; does nothing outside my_lessons."""
    path = store()
    if path is None:
        return
    known = recorded(path)
    if exercise in known.get(lesson, []):
        return
    known[lesson] = sorted({*known.get(lesson, []), exercise})
    new = path.with_name(f"{FILE}.{os.getpid()}.new")
    new.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(new, path)


def recorded(path: Path | None) -> dict[str, list[str]]:
    """lesson -> exercises passed. A file that cannot be read is put aside as passed.json.broken, not overwritten."""
    if path is None or not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(lesson): [str(one) for one in exercises] for lesson, exercises in content.items()}
    except (ValueError, AttributeError, TypeError):
        os.replace(path, path.with_name(f"{FILE}.broken"))
        return {}


@dataclass(frozen=True)
class ProgressTable:
    """Exercises by lesson with minutes and whether they were passed here."""

    rows: tuple[tuple[str, str, int, bool], ...]
    recording: bool

    def _note(self) -> str:
        done = sum(row[3] for row in self.rows)
        if self.recording:
            return f"{done} of {len(self.rows)} passed. Kept only in {FOLDER}/{FILE} on this machine."
        return f"Passed checks are remembered in your own copies only (folder {FOLDER})."

    def __repr__(self) -> str:
        width = [max((len(row[n]) for row in self.rows), default=0) for n in (0, 1)]  # type: ignore[arg-type]
        lines = [
            f"{lesson:<{width[0]}}  {name:<{width[1]}}  {minutes:>3} min  {'✓ passed' if done else '○ open'}"
            for lesson, name, minutes, done in self.rows
        ]
        return "\n".join([*lines, self._note()])

    def _repr_html_(self) -> str:
        cells = [
            (lesson, name, str(minutes), "✓ passed" if done else "○ open") for lesson, name, minutes, done in self.rows
        ]
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
        head = "".join(f"<th>{name}</th>" for name in ("lesson", "exercise", "minutes", ""))
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"{table}<p>{html.escape(self._note())}</p>"


def table(exercises: Iterable[tuple[str, str, int]]) -> ProgressTable:
    """The learner's table from (lesson, exercise, minutes)."""
    path = store()
    known = recorded(path)
    rows = tuple((lesson, name, minutes, name in known.get(lesson, [])) for lesson, name, minutes in exercises)
    return ProgressTable(rows, path is not None)
