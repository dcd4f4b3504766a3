"""One call as a rule sees it: its possible names, its arguments, the versions and settings that hold (lesson 10)."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.review.names import MISSING, UNKNOWN, Names, Scope, Unknown
from labkit.review.pins import Pins
from labkit.review.walk import FunctionNode

Argument = tuple[ast.expr, Scope]


@dataclass(frozen=True)
class Hit:
    """What a check found. Empty fields are filled in from the rule."""

    what: str = ""
    severity: str = ""
    confidence: str = "high"
    remedy: str = ""
    rule: str = ""


@dataclass(frozen=True)
class Setting:
    """An environment variable that the source sets."""

    value: str
    line: int
    cell: int | None = None


@dataclass(frozen=True)
class View:
    """A call. For functools.partial(f, ...) names are f's, and skip is the number of arguments before f's own."""

    node: ast.Call
    names: frozenset[str]
    scope: Scope
    function: FunctionNode | None
    table: Names
    pins: Pins
    settings: Mapping[str, Setting]
    skip: int = 0

    @property
    def method(self) -> str | None:
        """The attribute that is called, whatever it belongs to."""
        return self.node.func.attr if isinstance(self.node.func, ast.Attribute) and not self.skip else None

    @property
    def text(self) -> str:
        """A short name to show."""
        known = sorted(n for n in self.names if "<" not in n)
        return known[0] if known else f"...{self.method}" if self.method else "a call"

    def argument(self, name: str, position: int | None = None) -> Argument | Unknown:
        """An argument's expression, MISSING when it is not given, UNKNOWN when it may hide in *args or **kwargs."""
        open_end = False
        for keyword in self.node.keywords:
            if keyword.arg == name:
                return keyword.value, self.scope
            if keyword.arg is None:
                mapping = dict(self._mapping(keyword.value))
                if name in mapping:
                    return mapping[name]
                open_end = open_end or not mapping
        if position is not None:
            before = self.node.args[self.skip : self.skip + position + 1]
            if any(isinstance(a, ast.Starred) for a in before):
                return UNKNOWN
            if len(before) > position:
                return before[position], self.scope
        return UNKNOWN if open_end else MISSING

    def value(self, name: str, position: int | None = None) -> Any:
        """An argument's constant value, MISSING or UNKNOWN."""
        found = self.argument(name, position)
        return found if isinstance(found, Unknown) else self.table.constant(*found)

    def names_of(self, name: str, position: int | None = None) -> frozenset[str]:
        """What an argument may be named."""
        found = self.argument(name, position)
        return frozenset() if isinstance(found, Unknown) else self.table.resolve(*found)

    @property
    def open_ended(self) -> bool:
        """Whether some keyword arguments come from a mapping the source does not spell out."""
        return any(k.arg is None and not dict(self._mapping(k.value)) for k in self.node.keywords)

    def keywords(self) -> Iterator[tuple[str, Argument]]:
        """Every keyword argument the source tells, those in a spelled-out ** mapping too."""
        for keyword in self.node.keywords:
            if keyword.arg is not None:
                yield keyword.arg, (keyword.value, self.scope)
            else:
                yield from self._mapping(keyword.value)

    def _mapping(self, node: ast.expr) -> Iterator[tuple[str, Argument]]:
        scope = self.scope
        for _ in range(8):  # follow names that are bound once
            bound = scope.find(node.id) if isinstance(node, ast.Name) else None
            if not bound or len(bound) != 1 or not isinstance(bound[0][0], ast.expr):
                break
            node, scope = bound[0]  # type: ignore[assignment]
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, (value, scope)
        elif isinstance(node, ast.Call) and "builtins.dict" in self.table.resolve(node.func, scope):
            yield from ((k.arg, (k.value, scope)) for k in node.keywords if k.arg)
