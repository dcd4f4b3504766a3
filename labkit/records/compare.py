"""What changed between two runs: config, environment, data, code. Lesson 10."""

from __future__ import annotations

import difflib
import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.records.runs import Run, flat

SECTIONS = ("config", "data", "code", "environment")
_MISSING = "(not there)"


@dataclass(frozen=True)
class Change:
    """One value that differs; a side that lacks it says so."""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True)
class RunDiff:
    """Differences between two runs by section, and how the patches of uncommitted changes differ, as a text diff."""

    a: str
    b: str
    sections: dict[str, list[Change]]
    patch: str

    def __bool__(self) -> bool:
        return any(self.sections.values()) or bool(self.patch)

    def __str__(self) -> str:
        lines = [f"a: {self.a}", f"b: {self.b}"]
        for section, changes in self.sections.items():
            lines.append(f"{section}: {'the same' if not changes else f'{len(changes)} differ'}")
            lines += [f"  {change.name}: {change.a!r} -> {change.b!r}" for change in changes]
        return "\n".join(lines + ([f"uncommitted changes:\n{self.patch}"] if self.patch else []))

    def _repr_html_(self) -> str:
        rows = [
            f"<tr><td>{section}</td><td>{_cell(c.name)}</td><td>{_cell(c.a)}</td><td>{_cell(c.b)}</td></tr>"
            for section, changes in self.sections.items()
            for c in changes
        ]
        head = f"<tr><th></th><th></th><th>{_cell(self.a)}</th><th>{_cell(self.b)}</th></tr>"
        patch = f"<pre>{html.escape(self.patch)}</pre>" if self.patch else ""
        body = "".join(rows) or "<tr><td colspan='4'>no difference recorded</td></tr>"
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>{patch}"


def diff_runs(a: Run, b: Run) -> RunDiff:
    """Compare the newest state of two runs. What neither recorded cannot be compared and is not a difference."""
    codes = [_code(run) for run in (a, b)]
    patches = [str(code.pop("patch", "")) for code in codes]
    environments = [
        {name: value for name, value in run.environment.items() if name not in ("git", "labkit_git", "format")}
        for run in (a, b)
    ]
    sections = {
        "config": changes(a.config, b.config),
        "data": changes(_begin(a, "data"), _begin(b, "data")),
        "code": changes(*codes),
        "environment": changes(*environments),
    }
    left, right = (patch.splitlines() for patch in patches)
    lines = difflib.unified_diff(left, right, a.name, b.name, n=0, lineterm="")
    return RunDiff(a.name, b.name, sections, "\n".join(lines) if patches[0] != patches[1] else "")


def changes(a: Any, b: Any) -> list[Change]:
    """The differing values of two nested mappings, by dotted name, in the order of the first."""
    left, right = flat(a or {}), flat(b or {})
    left.pop("", None), right.pop("", None)
    return [
        Change(name, left.get(name, _MISSING), right.get(name, _MISSING))
        for name in dict.fromkeys([*left, *right])
        if not _same(left.get(name, _MISSING), right.get(name, _MISSING))
    ]


def _same(a: Any, b: Any) -> bool:
    return a == b or (a != a and b != b)  # nan is the same setting as nan


def _begin(run: Run, field: str) -> dict[str, Any]:
    value = run.attempts[-1].begin.get(field) if run.attempts else None
    return dict(value) if isinstance(value, Mapping) else {}


def _code(run: Run) -> dict[str, Any]:
    """Revision and patch of the newest attempt; the patch lies in a file that the attempt names."""
    code: dict[str, Any] = {"revision": _begin(run, "code"), "model": _begin(run, "model")}
    name = code["revision"].pop("patch_file", None)
    code["labkit"] = {k: v for k, v in (run.environment.get("labkit_git") or {}).items() if k != "patch"}
    patch = ""
    if isinstance(name, str) and (run.folder / name).is_file():
        patch = (run.folder / name).read_bytes().decode(errors="surrogateescape")
    elif isinstance(stored := (run.environment.get("git") or {}).get("patch"), str):
        patch = stored
    return {**code, "patch": patch + str((run.environment.get("labkit_git") or {}).get("patch") or "")}


def _cell(value: Any) -> str:
    text = str(value)
    return html.escape(text if len(text) <= 200 else text[:200] + "...")
