"""Inputs for predict from plain text: prompts, or rows of numbers, as the artefact's description asks. Lesson 09."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.errors import ExportError


def read_inputs(text: str, description: Mapping[str, Any]) -> list[Any]:
    """One input for each line. description["inputs"]: {"kind": "text"}, or {"kind": "numbers", "each": how many}.

    Numbers are parted by commas or blanks; an empty line is empty text, or nothing. Raises ExportError with the line.
    """
    wanted = description.get("inputs", {"kind": "text"})
    lines = text.splitlines()
    if wanted["kind"] == "text":
        return lines
    rows = [(number, line.replace(",", " ").split()) for number, line in enumerate(lines, 1) if line.strip()]
    return [_row(number, words, int(wanted["each"])) for number, words in rows]


def _row(number: int, words: list[str], each: int) -> list[float]:
    try:
        row = [float(word) for word in words]
    except ValueError as error:
        raise ExportError(f"line {number} holds no numbers ({error})", f"{each} numbers", "") from error
    if len(row) != each:
        raise ExportError(f"line {number} holds {len(row)} numbers", f"{each}", "leave out labels and headings")
    return row
