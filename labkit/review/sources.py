"""Finding and reading what is reviewed: Python files, notebooks and requirement files, as text only (lesson 10)."""

from __future__ import annotations

import ast
import codecs
import io
import os
import re
import stat
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from labkit.errors import ReviewError
from labkit.review import pins
from labkit.review.notebooks import PARSE_FLAGS, Cell, read_cells

SKIPPED = {
    ".git",
    ".hg",
    ".svn",
    ".ipynb_checkpoints",
    "__pycache__",
    "node_modules",
    "site-packages",
    ".tox",
    ".nox",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".eggs",
}
ALSO_RUNS = {
    ".sh",
    ".bash",
    ".yaml",
    ".yml",
    ".toml",
    ".json",
    ".cfg",
    ".ini",
    ".pyx",
    ".so",
    ".cu",
    ".cpp",
    ".ipy",
    ".bat",
    ".ps1",
}
LARGEST_SOURCE = 2_000_000
LARGEST_NOTEBOOK = 200_000_000
ALLOW = re.compile(r"#\s*labkit:\s*allow\b[ :]*([a-z-]+(?:,[a-z-]+)*)?(.*)$")


@dataclass(frozen=True)
class Allow:
    """One comment that answers findings: of which rules, why, and on which lines it holds."""

    rules: frozenset[str]
    reason: str
    line: int
    lines: frozenset[int]


@dataclass
class Piece:
    """A parsed file or cell."""

    cell: int | None
    tree: ast.Module
    allows: list[Allow]


@dataclass
class Source:
    """One file: what parsed, what did not (cell, line, reason) and the versions that hold for it."""

    path: str
    file: Path
    pieces: list[Piece] = field(default_factory=list)
    unread: list[tuple[int | None, int, str]] = field(default_factory=list)
    pins: pins.Pins = field(default_factory=pins.Pins)


@dataclass
class Tree:
    """What was found under the reviewed path, by relative path."""

    python: list[tuple[str, Path]] = field(default_factory=list)
    requirements: list[tuple[str, Path]] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)


def find(path: Path) -> Tree:
    """List what can be read. Raises ReviewError when the path is neither a file nor a folder."""
    tree = Tree()
    if path.is_file():
        tree.python.append((path.name, path))
        tree.requirements = [
            (p.name, p) for p in sorted(path.parent.iterdir()) if _is_requirements(p.name) and p.is_file()
        ]
        return tree
    if not path.is_dir():
        raise ReviewError(
            f"{path} is not there, or neither a file nor a folder", "a Python file, a notebook or a folder"
        )
    for folder, names, files in os.walk(path, onerror=lambda error: _refuse(error, path)):
        here = Path(folder)
        for name in [n for n in names if n in SKIPPED or (here / n).is_symlink() or (here / n / "pyvenv.cfg").exists()]:
            names.remove(name)
            tree.skipped[f"{name} (a link)" if (here / name).is_symlink() else name] += 1
        names.sort()
        for name in sorted(files):
            _sort_in(tree, here / name, (here / name).relative_to(path).as_posix())
    return tree


def _refuse(error: OSError, root: Path) -> None:
    if Path(error.filename) == root:
        raise ReviewError(f"{root} cannot be listed ({error.strerror})") from error


def _sort_in(tree: Tree, file: Path, name: str) -> None:
    if file.suffix in (".py", ".pyw", ".ipynb"):
        tree.python.append((name, file))
    elif _is_requirements(file.name):
        tree.requirements.append((name, file))
    elif file.suffix in ALSO_RUNS or file.name in ("Makefile", "Dockerfile"):
        tree.others[file.suffix or file.name] += 1


def _is_requirements(name: str) -> bool:
    named = re.fullmatch(r"(requirements|constraints)[\w.-]*\.(txt|in)|environment[\w.-]*\.ya?ml", name)
    return named is not None or name in ("pyproject.toml", "uv.lock", "poetry.lock")


def read_requirements(name: str, file: Path) -> list[pins.Requirement]:
    """The requirements of one file. Raises ValueError or OSError when it cannot be read."""
    text = read_text(file, LARGEST_SOURCE * 5)[0]
    if name.endswith((".toml", ".lock")):
        return pins.from_toml(text)
    return pins.from_environment(text) if name.endswith(("yml", "yaml")) else pins.from_lines(text)


def read_text(file: Path, limit: int) -> tuple[str, str]:
    """The text and a remark on its encoding, or ''. Raises OSError, or ValueError with the reason."""
    facts = file.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError("it is not an ordinary file")
    if facts.st_size > limit:
        raise ValueError(f"it is larger ({facts.st_size:,} bytes) than the {limit:,} bytes that are read")
    data = file.read_bytes()
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16"), ""
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0] if file.suffix != ".ipynb" else "utf-8-sig"
        return data.decode(encoding).replace("\r\n", "\n").replace("\r", "\n"), ""
    except (SyntaxError, UnicodeDecodeError):
        return data.decode("latin-1").replace(
            "\r\n", "\n"
        ), "it is not in the encoding it declares (UTF-8 if it declares none)"


def read(path: str, file: Path) -> Source:
    """Read and parse one file. Whatever does not work out is listed in unread; nothing is raised, nothing is run."""
    source = Source(path, file)
    notebook = file.suffix == ".ipynb"
    try:
        text, remark = read_text(file, LARGEST_NOTEBOOK if notebook else LARGEST_SOURCE)
        cells = list(read_cells(text)) if notebook else [Cell(0, text)]
    except OSError as error:
        source.unread.append((None, 1, f"it cannot be read ({error.strerror})"))
        return source
    except ValueError as error:
        source.unread.append((None, 1, str(error)))
        return source
    if remark:
        source.unread.append((None, 1, f"{remark}; it was reviewed as Latin-1, so names may be misread"))
    if not notebook:
        source.pins.add(pins.from_script_header(text))
    for cell in cells:
        number = cell.number if notebook else None
        if cell.problem:
            source.unread.append((number, 1, cell.problem))
            continue
        try:
            source.pieces.append(_parse(cell, number))
        except SyntaxError as error:
            hint = " (it reads like Python 2)" if _python_2(cell.text) else ""
            source.unread.append((number, (error.lineno or 1) + cell.offset, f"it does not parse: {error.msg}{hint}"))
        except (ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
            source.unread.append((number, 1, f"it does not parse: {str(error) or type(error).__name__}"))
    return source


def _parse(cell: Cell, number: int | None) -> Piece:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks on the reviewed text, not ours
        tree = compile(cell.text, "<reviewed>", "exec", PARSE_FLAGS, dont_inherit=True)
    assert isinstance(tree, ast.Module)
    if cell.offset:
        ast.increment_lineno(tree, cell.offset)
    return Piece(number, tree, list(_allows(cell)) if "labkit:" in cell.text else [])


def _allows(cell: Cell) -> Iterator[Allow]:
    lines = cell.text.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(cell.text).readline):
        found = ALLOW.search(token.string) if token.type == tokenize.COMMENT else None
        if found is None:
            continue
        row = token.start[0]
        alone = lines[row - 1].lstrip().startswith("#")
        held = {row}
        while alone and row < len(lines) and (row in held):
            row += 1
            if not lines[row - 1].strip() or lines[row - 1].lstrip().startswith("#"):
                held.add(row)  # a comment block above a statement speaks for the statement
        rules = frozenset(found[1].split(",")) if found[1] else frozenset()
        reason = found[2].strip(" \t:,.-–—()")
        yield Allow(rules, reason, token.start[0] + cell.offset, frozenset(n + cell.offset for n in {*held, row}))


def _python_2(text: str) -> bool:
    return (
        re.search(r"^\s*(print\s+[\"'\w]|except\s+[\w.]+\s*,\s*\w+\s*:|exec\s+[\"'\w])", text, re.MULTILINE) is not None
    )
