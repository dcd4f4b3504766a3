"""Notebook cells as Python text: magics and shell lines become the calls that IPython would make (lesson 10)."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PARSE_FLAGS = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
TIMING = {"time", "timeit", "capture", "prun", "memit", "mprun", "lprun", "debug", "snakeviz"}
SHELLS = {"bash", "sh", "script", "system", "sx", "!"}
TEXTS = {"html", "markdown", "latex", "svg", "javascript", "js"}
ASSIGNED = re.compile(r"^([\w ,.\[\]*]+?=\s*)([!%])(.+)$")
BARE_INSTALL = re.compile(r"^(pip3?|conda|mamba|uv)\s+(install|add|pip)\b")


@dataclass(frozen=True)
class Cell:
    """One code cell. number counts all cells from 1; offset is added to line numbers; problem tells why it is empty."""

    number: int
    text: str
    offset: int = 0
    problem: str = ""


def read_cells(data: str) -> Iterator[Cell]:
    """The code cells of a notebook of format 3 or 4. Raises ValueError, with the reason, when it is not a notebook."""
    try:
        book = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({type(error).__name__})") from error
    if not isinstance(book, dict) or not isinstance(book.get("cells", book.get("worksheets")), list):
        raise ValueError("it holds no list of cells")
    language = _language(book)
    if language not in ("python", "python3", "ipython", "ipython3"):
        raise ValueError(f"its language is {language}, not Python")
    sheets = [book["cells"]] if "cells" in book else [s.get("cells") for s in book["worksheets"] if isinstance(s, dict)]
    cells = [cell for sheet in sheets if isinstance(sheet, list) for cell in sheet]
    for number, cell in enumerate(cells, 1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", cell.get("input", ""))
        text = "".join(map(str, source)) if isinstance(source, list) else source
        if isinstance(text, str):
            yield from _split(number, text)
        else:
            yield Cell(number, "", problem="its source is not text")


def _language(book: dict[str, Any]) -> str:
    metadata = book.get("metadata")
    info = metadata.get("language_info", metadata.get("kernelspec")) if isinstance(metadata, dict) else None
    name = info.get("name", "python") if isinstance(info, dict) else "python"
    if isinstance(info, dict) and "language" in info:
        name = info["language"]
    return str(name).lower()


def _split(number: int, text: str) -> Iterator[Cell]:
    first, _, body = text.partition("\n")
    if first.startswith("%%"):
        yield from _cell_magic(number, first[2:].strip(), body)
    else:
        yield Cell(number, python_text(text))


def _cell_magic(number: int, line: str, body: str) -> Iterator[Cell]:
    name, _, argument = line.partition(" ")
    name, argument = name or "!", argument.strip()
    if name in TIMING:
        yield Cell(number, python_text(body), 1)
    elif name in SHELLS:
        yield Cell(number, "\n".join(shell_lines(body)), 1)
    elif name in ("writefile", "file"):
        yield Cell(number, f"get_ipython().run_cell_magic({name!r}, {argument!r}, '')")
        if argument.split() and argument.split()[-1].endswith(".py"):
            yield Cell(number, body, 1)
    elif name not in TEXTS:
        yield Cell(number, "", problem=f"its language or magic %%{name} is not understood")


def parses(text: str) -> bool:
    """Whether the text is Python as it stands."""
    try:
        compile(text, "<cell>", "exec", PARSE_FLAGS, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def python_text(text: str) -> str:
    """The cell with every magic, shell and help line replaced by Python of as many lines."""
    if parses(text):
        return text  # a line that starts with % is then the tail of an expression, or text
    lines = text.split("\n")
    done: list[str] = []
    while lines:
        line = lines.pop(0)
        joined, extra = line, 0
        if line.lstrip()[:1] in ("!", "%") or ASSIGNED.match(line) or BARE_INSTALL.match(line):
            while joined.endswith("\\") and lines:
                joined, extra = joined[:-1] + lines.pop(0).strip(), extra + 1
        done += [_line(joined), *[""] * extra]
    return "\n".join(done)


def _line(line: str) -> str:
    body = line.lstrip()
    indent = line[: len(line) - len(body)]
    assigned = ASSIGNED.match(body)
    if assigned:
        return indent + assigned[1] + _call(assigned[2], assigned[3])
    if body.startswith(("!", "%")):
        return indent + _call(body[0], body.lstrip("!%"))
    if BARE_INSTALL.match(body):
        return indent + _call("%", body)
    if body.startswith("?") or re.match(r"^[\w.]+\?{1,2}\s*$", body):
        return indent + "pass"
    return line


def _call(sign: str, text: str) -> str:
    text, mark, comment = text.partition("# labkit:")
    if mark:
        return f"{_call(sign, text)}  {mark}{comment}"
    if sign == "!":
        return f"get_ipython().system({text.strip()!r})"
    name, _, rest = text.strip().partition(" ")
    rest = rest.strip()
    if name in ("time", "timeit", "prun"):
        code = re.sub(r"^(?:-\w+\s*\d*\s+)+", "", rest)
        return code if code and parses(code) else "pass"
    if name in ("system", "sx", "sh"):
        return f"get_ipython().system({rest!r})"
    return f"get_ipython().run_line_magic({name!r}, {rest!r})"


def shell_lines(text: str) -> list[str]:
    """One Python call per line of a shell script, with as many lines."""
    done: list[str] = []
    held, extra = "", 0
    for line in text.split("\n"):
        if line.endswith("\\"):
            held, extra = held + line[:-1], extra + 1
            continue
        whole = (held + line).strip()
        done += [_call("!", whole) if whole and not whole.startswith("#") else "", *[""] * extra]
        held, extra = "", 0
    return done
