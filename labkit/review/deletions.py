"""Removals, judged by where their target comes from (lesson 10).

A function that deletes what its caller names is not a finding by itself: its calls are, in the same file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from labkit.review.calls import DELETIONS
from labkit.review.names import Scope
from labkit.review.view import Hit, View

CONFIGURED: Final = re.compile(
    r"parse_(?:known_)?args\(\)|<(?:args|cfg|config|conf|opts?|flags|hparams|hp)>|os\.environ|os\.getenv|"
    r"sys\.argv|expanduser|\.home\(\)|getcwd|\.cwd\(\)|FLAGS\.|builtins\.input"
)
TEMPORARY: Final = re.compile(r"^tempfile\.|<tmp_path>|<tmpdir>")


def deletions(views: list[tuple[int, View]]) -> Iterator[tuple[int, View, Hit]]:
    """Every removal worth a finding, with the index of its piece and its call."""
    helpers: dict[str, tuple[str, int, bool]] = {}
    for index, view in views:
        for target, scope, recursive in _targets(view):
            parameter = _parameter(view, target)
            if parameter and isinstance(view.function, ast.FunctionDef):
                helpers[view.function.name] = (parameter[0], parameter[1], recursive)
            hit = _judge(view, target, scope, recursive, judged_by_caller=parameter is not None)
            if hit:
                yield index, view, hit
    for index, view in views:  # calls of a function of this file that deletes what it is given
        function = _own_function(view)
        if function in helpers:
            name, position, recursive = helpers[function]
            found = view.argument(name, position)
            hit = _judge(view, *found, recursive, True) if isinstance(found, tuple) else None
            if hit:
                yield index, view, replace(hit, what=hit.what.replace(view.text, f"{function}()", 1))


def _targets(view: View) -> Iterator[tuple[ast.expr, Scope, bool]]:
    for name in view.names & DELETIONS.keys():
        found = view.argument("path", 0)
        if isinstance(found, tuple):
            yield *found, DELETIONS[name]
            return
    func = view.node.func
    if view.method in ("unlink", "rmdir") and isinstance(func, ast.Attribute) and not view.names & DELETIONS.keys():
        if not view.names or any(n.startswith("<") or "pathlib" in n or "glob" in n for n in view.names):
            yield func.value, view.scope, False


def _parameter(view: View, target: ast.expr) -> tuple[str, int] | None:
    """The parameter of the function around it that a target starts from, and its position without self."""
    if not isinstance(view.function, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    names = [a.arg for a in [*view.function.args.posonlyargs, *view.function.args.args] if a.arg not in ("self", "cls")]
    roots = {m[1] for n in view.table.resolve(target, view.scope) if (m := re.match(r"<(\w+)>", n))}
    return next(((name, number) for number, name in enumerate(names) if name in roots), None)


def _own_function(view: View) -> str:
    """The name of a function or method of the same file that is called; '' when it is another's."""
    match view.node.func:
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
            return name
    return ""


def _judge(view: View, target: ast.expr, scope: Scope, recursive: bool, judged_by_caller: bool) -> Hit | None:
    """A removal, by where its target comes from.

    A temporary place is fine, a parameter is the caller's affair, a fixed place or a setting is the gravest.
    """
    where, names = view.table.constant(target, scope), view.table.resolve(target, scope)
    what = "a whole folder" if recursive else "an empty folder" if view.text.endswith("rmdir") else "a file"
    if isinstance(where, str):
        return Hit(f"{view.text} deletes the fixed place {where[:60]!r}", "high" if recursive else "medium")
    if any(TEMPORARY.search(n) for n in names):
        return None
    if any(CONFIGURED.search(n) for n in names):
        return Hit(f"{view.text} deletes {what} that a setting or argument names", "high" if recursive else "medium")
    if judged_by_caller or any(n.startswith("<") for n in names):
        return None
    return Hit(f"{view.text} deletes {what}", "medium" if recursive else "low", "medium")
