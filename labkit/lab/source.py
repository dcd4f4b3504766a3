"""Show the real source of labkit inside a lesson, so that no second copy of it exists. All lessons."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import LabkitError

LIMIT = 30


@dataclass(frozen=True)
class Source:
    """A piece of source with the place it comes from; plain text and Markdown are the same on any machine."""

    place: str
    text: str
    rest: int

    def __repr__(self) -> str:
        more = f"\n# {self.rest} more lines in {self.place.split(' · ')[0]}" if self.rest else ""
        return f"# {self.place}\n{self.text}{more}"

    def _repr_markdown_(self) -> str:
        return f"```python\n{self!r}\n```"


def source(thing: Callable[..., Any] | type, lines: tuple[int, int] | None = None) -> Source:
    """The source of a function or class as it runs, at most 30 lines; long docstrings are cut to their first line.

    lines: (first, last), counted from 1 at the `def` line of what is shown, both included.
    Raises LabkitError for lines outside the function, for more than 30, or where there is no source.
    """
    unwrapped = inspect.unwrap(thing)
    try:
        text = textwrap.dedent(inspect.getsource(unwrapped))
    except (OSError, TypeError) as fault:
        raise LabkitError(f"no Python source for {thing!r}", "a function or class written in Python") from fault
    shown = _short_docstrings(text).rstrip().split("\n")
    first, last = lines if lines is not None else (1, min(len(shown), LIMIT))
    if not 1 <= first <= last <= len(shown):
        raise LabkitError(f"lines {first} to {last}", f"lines between 1 and {len(shown)}")
    if last - first >= LIMIT:
        raise LabkitError(f"{last - first + 1} lines", f"at most {LIMIT}, more is not read", "point at fewer lines")
    cut = textwrap.dedent("\n".join(shown[first - 1 : last]))
    return Source(f"{_page(unwrapped)} · {unwrapped.__qualname__}", cut, len(shown) - last if lines is None else 0)


def _page(thing: Any) -> str:
    """labkit/loop.py for what lives in labkit, the module's name for anything else."""
    path = Path(inspect.getsourcefile(thing) or "")
    module = thing.__module__ or ""
    top = module.split(".")[0]
    if top in path.parts[:-1]:
        start = len(path.parts) - 1 - path.parts[::-1].index(top)
        return "/".join(path.parts[start:])
    return "this notebook" if module == "__main__" else module


def _short_docstrings(text: str) -> str:
    lines = text.split("\n")
    for node in sorted(_documented(ast.parse(text)), key=lambda n: -n.body[0].lineno):
        said = node.body[0]
        assert said.end_lineno is not None
        if said.end_lineno > said.lineno:
            head = lines[said.lineno - 1].rstrip()
            lines[said.lineno - 1 : said.end_lineno] = [head + ' ..."""']
    return "\n".join(lines)


def _documented(tree: ast.AST) -> list[Any]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds) and ast.get_docstring(node) is not None]
