"""What a check says: one of five verdicts, and the texts beside it, plain or as HTML. All lessons."""

from __future__ import annotations

import html
from dataclasses import dataclass
from enum import Enum
from typing import Any


class _Todo:
    """What a stub returns until it is written."""

    def __repr__(self) -> str:
        return "lab.TODO"

    def __bool__(self) -> bool:
        return False


TODO: Any = _Todo()


class Verdict(Enum):
    """The five things a check can say."""

    NOT_ATTEMPTED = "not attempted"
    NOT_YET = "not yet"
    ERROR = "error in your code"
    HOLDS = "holds"
    CANNOT = "cannot check here"


MARK = {Verdict.NOT_ATTEMPTED: "○", Verdict.NOT_YET: "✗", Verdict.ERROR: "!", Verdict.HOLDS: "✓", Verdict.CANNOT: "–"}
COLOR = {
    Verdict.NOT_ATTEMPTED: "#6b6b6b",
    Verdict.NOT_YET: "#a04000",
    Verdict.ERROR: "#b00020",
    Verdict.HOLDS: "#00664b",
    Verdict.CANNOT: "#6b6b6b",
}


@dataclass(frozen=True)
class Result:
    """What a check found. name is the misconception it recognised; the other texts are whole sentences or empty."""

    exercise: str
    verdict: Verdict
    name: str = ""
    message: str = ""
    expected: str = ""
    seen: str = ""
    smallest: str = ""
    try_next: str = ""
    printed: str = ""

    @property
    def holds(self) -> bool:
        return self.verdict is Verdict.HOLDS

    @property
    def score(self) -> float:
        """1.0 when the answer holds, otherwise 0.0."""
        return 1.0 if self.holds else 0.0

    def require(self) -> None:
        """For grading: AssertionError with the whole message unless the answer holds."""
        if not self.holds:
            raise AssertionError(repr(self))

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("expected", self.expected),
            ("seen", self.seen),
            ("smallest failing input", self.smallest),
            ("try next", self.try_next),
            ("your code printed", self.printed),
        ]
        return [(label, text) for label, text in rows if text]

    def _title(self) -> str:
        return f"{self.exercise}: {self.verdict.value}" + (f" ({self.name})" if self.name else "")

    def __repr__(self) -> str:
        lines = [f"{MARK[self.verdict]} {self._title()}"]
        lines += [f"  {line}" for line in self.message.split("\n") if line]
        for label, text in self._rows():
            lines.append(f"  {label}: " + text.replace("\n", "\n    "))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        color = COLOR[self.verdict]
        indented = '<div style="margin-left:1.4em;white-space:pre-wrap">'
        rows = "".join(f"{indented}<b>{label}:</b> {html.escape(text)}</div>" for label, text in self._rows())
        said = f"{indented}{html.escape(self.message)}</div>" if self.message else ""
        head = f'<div><b style="color:{color}">{MARK[self.verdict]} {html.escape(self._title())}</b></div>'
        return (
            f'<div role="status" style="border-left:4px solid {color};padding:2px 0 2px 10px">{head}{said}{rows}</div>'
        )
