"""The tables of README.md that are collected from the lessons: `python tests/front_page.py` writes them anew.

The lesson map has each lesson's minutes and its line of "the one thing to get right"; the recap has the rows of its
recap table. Both are read from the notebooks, so that there is one place for each fact.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
LESSONS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def prose(path: Path) -> list[str]:
    """The markdown cells of a notebook."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]


def title(path: Path) -> str:
    """The first heading, without its number."""
    heading = next(line for line in prose(path)[0].splitlines() if line.startswith("# "))
    return re.sub(r"^#\s*\d*[.:]?\s*", "", heading).strip()


def minutes(path: Path) -> tuple[int, int]:
    """(reading, exercises) as the card says."""
    card = prose(path)[0]
    reading = re.search(r"[Rr]eading:?\s+(?:about\s+)?(\d+)", card)
    exercises = re.search(r"[Ee]xercises?:?\s+(?:about\s+)?(\d+)", card)
    if reading is None or exercises is None:
        raise SystemExit(f"{path.name}: the card must say 'Reading N minutes' and 'exercises N minutes'")
    return int(reading[1]), int(exercises[1])


def one_thing(path: Path) -> str:
    """The lesson's line of the one thing to get right."""
    found = re.search(r"\*\*The one thing to get right:\*\*\s*(.+?)(?:\n\s*\n|\Z)", "\n\n".join(prose(path)), re.DOTALL)
    if found is None:
        raise SystemExit(f"{path.name}: no line '**The one thing to get right:** ...'")
    return " ".join(found[1].split())


def table(path: Path, head: str) -> list[list[str]]:
    """Rows of the first table whose first head cell begins so."""
    rows, inside = [], False
    for line in "\n".join(prose(path)).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.strip().startswith("|") else []
        if cells and cells[0].startswith(head):
            inside = True
        elif inside and not cells:
            break
        elif inside and not set("".join(cells)) <= set("-: "):
            rows.append(cells)
    return rows


def recap(path: Path) -> list[str]:
    """A lesson in a few lines: its recap table, or what it adds to the list of state and how each loss shows."""
    rows = [": ".join(cell for cell in row[:2] if cell) for row in table(path, "recap")]
    lost = table(path, "what must survive")
    return rows or [f"lost: {row[0].strip('*')}; first difference: {row[1]}" for row in lost]


def lesson_map() -> str:
    rows = ["| lesson | minutes | the one thing to get right |", "|---|---|---|"]
    for path in LESSONS:
        reading, exercises = minutes(path)
        name = f"[{path.stem[:2]} {title(path)}](notebooks/{path.name})"
        rows.append(f"| {name} | {reading} + {exercises} | {one_thing(path)} |")
    return "\n".join(rows)


def recap_page() -> str:
    parts = []
    for path in LESSONS:
        parts.append(f"**{path.stem[:2]} {title(path)}**\n\n" + "\n".join(f"- {row}" for row in recap(path)))
    return "\n\n".join(parts)


MARKS = {"lesson map": lesson_map, "recap": recap_page}


def between(text: str, mark: str) -> str:
    """What stands between the two comments of a mark."""
    start = re.search(rf"<!-- {mark}:[^>]*-->\n", text)
    end = text.index(f"<!-- end of {mark} -->")
    assert start is not None
    return text[start.end() : end].strip("\n")


def main() -> int:
    text = README.read_text(encoding="utf-8")
    for mark, make in MARKS.items():
        old = between(text, mark)
        start = re.search(rf"<!-- {mark}:[^>]*-->\n", text)
        assert start is not None
        end = start.end() + text[start.end() :].index(f"<!-- end of {mark} -->")
        text = text[: start.end()] + make() + "\n" + text[end:]
        print(f"{mark}: {'as it was' if old == between(text, mark) else 'written'}")
    README.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
