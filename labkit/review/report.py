"""What a review hands back: findings, what was allowed and why, what was not read, what cannot be seen (lesson 10)."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass

SEVERITIES = ("low", "medium", "high")


@dataclass(frozen=True)
class Finding:
    """One place worth a look.

    path is relative to what was reviewed; line counts from 1, in a notebook within its cell; cell counts all cells of
    the notebook from 1 and is None outside notebooks; confidence tells how sure the reviewer is of that meaning.
    """

    path: str
    line: int
    cell: int | None
    rule: str
    severity: str
    what: str
    why: str
    remedy: str
    confidence: str

    @property
    def place(self) -> str:
        """The line, with its cell in a notebook."""
        return f"line {self.line}" if self.cell is None else f"cell {self.cell} line {self.line}"


@dataclass(frozen=True)
class Allowed:
    """A finding that the reviewed code itself answers, and the reason it gives."""

    finding: Finding
    reason: str


@dataclass(frozen=True)
class Report:
    """The outcome of one review; findings are sorted by path, cell, line."""

    findings: tuple[Finding, ...]
    allowed: tuple[Allowed, ...]
    unread: tuple[Finding, ...]
    cannot_see: tuple[str, ...]
    files: int

    def at_least(self, severity: str) -> tuple[Finding, ...]:
        """Findings and unread files of this severity or above."""
        floor = SEVERITIES.index(severity)
        return tuple(f for f in (*self.findings, *self.unread) if SEVERITIES.index(f.severity) >= floor)


def render(report: Report, severity: str = "low") -> str:
    """The report as text, without absolute paths or times. Lower severities than the one given are only counted."""
    shown = report.at_least(severity)
    lines: list[str] = []
    for path in dict.fromkeys(f.path for f in shown):
        lines += [path, *_findings(f for f in shown if f.path == path), ""]
    if report.allowed:
        lines.append("Allowed by the code itself:")
        lines += [f"  {a.finding.path} {a.finding.place}: {a.finding.rule}: {a.reason}" for a in report.allowed]
        lines.append("")
    lines.append("What a review without running cannot see:")
    for item in report.cannot_see:
        lines += textwrap.wrap(item, 110, initial_indent="  - ", subsequent_indent="    ")
    return "\n".join([*lines, "", _summary(report, shown, severity)])


def _findings(findings: Iterable[Finding]) -> list[str]:
    lines: list[str] = []
    told: set[tuple[str, str]] = set()
    for f in findings:
        lines.append(f"  {f.place}: {f.severity.upper()} {f.rule}: {f.what} [confidence {f.confidence}]")
        if (f.why, f.remedy) not in told:
            told.add((f.why, f.remedy))
            for label, text in (("why: ", f.why), ("do:  ", f.remedy)):
                lines += textwrap.wrap(text, 110, initial_indent="      " + label, subsequent_indent=" " * 11)
    return lines


def _summary(report: Report, shown: tuple[Finding, ...], severity: str) -> str:
    counts = ", ".join(f"{sum(f.severity == s for f in shown)} {s}" for s in reversed(SEVERITIES))
    text = f"{_number(report.files, 'file')} read; {_number(len(shown), 'finding')} ({counts})"
    hidden = len(report.findings) + len(report.unread) - len(shown)
    if hidden:
        text += f"; {hidden} below severity {severity} not shown"
    return text + "; nothing was run or imported."


def _number(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def to_json(report: Report) -> str:
    """The report as JSON: findings, allowed, unread, cannot_see, files."""
    return json.dumps(asdict(report), indent=1, ensure_ascii=False)
