"""Which dotted names and constants an expression may stand for: imports, rebinding and attributes followed (lesson 10).

Flow is ignored on purpose: a name bound twice may stand for both. A name the source does not tell stays unknown.
"""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass, field
from typing import Any, Final

Binding = str | ast.expr | None  # a dotted name, an expression to follow, or something opaque


class Unknown:
    """The type of UNKNOWN (a value is given, but not told by the source) and MISSING (no value is given)."""


UNKNOWN: Final = Unknown()
MISSING: Final = Unknown()
MOST_MEANINGS = 8
DEEPEST = 60


@dataclass(eq=False)
class Scope:
    """One namespace. Class bodies are skipped when a name is looked up from a function inside them, as Python does."""

    parent: Scope | None = None
    is_class: bool = False
    bindings: dict[str, list[tuple[Binding, Scope]]] = field(default_factory=dict)

    def bind(self, name: str, value: Binding, where: Scope | None = None) -> None:
        self.bindings.setdefault(name, []).append((value, where or self))

    def find(self, name: str) -> list[tuple[Binding, Scope]] | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.bindings and (scope is self or not scope.is_class):
                return scope.bindings[name]
            scope = scope.parent
        return None


class Names:
    """The names of one file or notebook. A parameter stands for itself, as <name>; a call adds (), an item []."""

    def __init__(self) -> None:
        self.module = Scope()
        self.attributes: dict[str, list[tuple[Binding, Scope]]] = {}  # what methods assign to self.<attribute>
        self.stars: list[str] = []  # modules imported with *
        self._memo: dict[tuple[int, int], frozenset[str]] = {}

    def resolve(self, node: ast.expr, scope: Scope, depth: int = 0) -> frozenset[str]:
        """Every dotted name the expression may stand for; empty when the source does not tell."""
        key = (id(node), id(scope))
        if depth > DEEPEST:
            return frozenset()
        if key not in self._memo:
            self._memo[key] = frozenset()  # a cycle of bindings ends here
            self._memo[key] = frozenset(sorted(self._expression(node, scope, depth + 1))[:MOST_MEANINGS])
        return self._memo[key]

    def _expression(self, node: ast.expr, scope: Scope, depth: int) -> set[str]:
        match node:
            case ast.Name(id=name):
                return self._name(name, scope, depth)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=attr):
                return self._follow(self.attributes.get(attr, []), depth) or {f"<self>.{attr}"}
            case ast.Attribute(value=value, attr=attr):
                return {f"{base}.{attr}" for base in self.resolve(value, scope, depth)}
            case ast.Call():
                return self._call(node, scope, depth)
            case ast.Subscript(value=value):
                return {f"{base}[]" for base in self.resolve(value, scope, depth)}
            case ast.Await(value=value) | ast.NamedExpr(value=value) | ast.Starred(value=value):
                return set(self.resolve(value, scope, depth))
            case ast.BinOp(left=left, op=ast.Div() | ast.Add()):
                return set(self.resolve(left, scope, depth))  # a path below a path
            case ast.IfExp(body=a, orelse=b):
                return set(self.resolve(a, scope, depth) | self.resolve(b, scope, depth))
            case ast.BoolOp(values=values):
                return {name for value in values for name in self.resolve(value, scope, depth)}
        return set()

    def _name(self, name: str, scope: Scope, depth: int) -> set[str]:
        bound = scope.find(name)
        if bound is not None:
            return self._follow(bound, depth)
        if name == "get_ipython":
            return {"IPython.get_ipython"}
        if self.stars:
            return {f"{module}.{name}" for module in self.stars} | _builtin(name)
        return _builtin(name)

    def _follow(self, bound: list[tuple[Binding, Scope]], depth: int) -> set[str]:
        found: set[str] = set()
        for value, where in bound:
            if isinstance(value, str):
                found.add(value)
            elif value is not None:
                found |= self.resolve(value, where, depth)
        return found

    def _call(self, node: ast.Call, scope: Scope, depth: int) -> set[str]:
        names = self.resolve(node.func, scope, depth)
        if "builtins.getattr" in names and len(node.args) >= 2:
            attr = self.constant(node.args[1], scope)
            return {f"{b}.{attr}" for b in self.resolve(node.args[0], scope, depth)} if isinstance(attr, str) else set()
        if names & {"importlib.import_module", "builtins.__import__"} and node.args:
            module = self.constant(node.args[0], scope)
            return {module} if isinstance(module, str) else set()
        found = {f"{name}()" for name in names}
        return found | self.resolve(node.args[0], scope, depth) if names & PATH_MAKERS and node.args else found

    def constant(self, node: ast.expr | None, scope: Scope, depth: int = 0) -> Any:
        """The value the source fixes for an expression, or UNKNOWN. Paths come back as text."""
        if node is None or depth > DEEPEST:
            return UNKNOWN
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                bound = scope.find(name) or []
                if len(bound) == 1 and isinstance(bound[0][0], ast.expr):
                    return self.constant(bound[0][0], bound[0][1], depth + 1)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self.constant(operand, scope, depth + 1)
                return -value if isinstance(value, int | float) else UNKNOWN
            case ast.List(elts=elts) | ast.Tuple(elts=elts) | ast.Set(elts=elts):
                return [self.constant(e, scope, depth + 1) for e in elts]
            case ast.BinOp(left=left, op=ast.Div() | ast.Add() as op, right=right):
                return self._joined([left, right], scope, depth, "/" if isinstance(op, ast.Div) else "")
            case ast.JoinedStr(values=parts):
                return self._joined(
                    [p.value if isinstance(p, ast.FormattedValue) else p for p in parts], scope, depth, ""
                )
            case ast.Call(func=func, args=args) if self.resolve(func, scope) & PATH_MAKERS and args:
                return self._joined(args, scope, depth, "/")
        return UNKNOWN

    def _joined(self, parts: list[ast.expr], scope: Scope, depth: int, between: str) -> Any:
        values = [self.constant(part, scope, depth + 1) for part in parts]
        return between.join(values) if all(isinstance(v, str) for v in values) else UNKNOWN


def _builtin(name: str) -> set[str]:
    return {f"builtins.{name}"} if hasattr(builtins, name) else set()


PATH_MAKERS: Final = frozenset(
    {
        "pathlib.Path",
        "pathlib.PurePath",
        "pathlib.PosixPath",
        "os.path.join",
        "builtins.str",
        "os.fspath",
        "os.path.abspath",
    }
)
