"""One walk over a syntax tree: who is called where, which names are bound to what, what is imported (lesson 10).

The walk keeps its own stack: source that nests deeper than Python's recursion limit is still read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from labkit.review.names import Names, Scope

LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.boolop, ast.cmpop, ast.unaryop)
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(slots=True)
class Seen:
    """A node with the scope it is read in and the function around it."""

    node: ast.AST
    scope: Scope
    function: FunctionNode | None


@dataclass
class Facts:
    """What the walk collects from all pieces of one source; calls and settings keep their piece's index."""

    names: Names = field(default_factory=Names)
    calls: list[tuple[int, Seen]] = field(default_factory=list)
    assignments: list[tuple[int, Seen]] = field(default_factory=list)
    imports: list[tuple[int, str, ast.stmt]] = field(default_factory=list)


def collect(trees: list[ast.Module]) -> Facts:
    """Walk the trees as pieces of one module, in order."""
    facts = Facts()
    for index, tree in enumerate(trees):
        stack = [Seen(node, facts.names.module, None) for node in reversed(tree.body)]
        while stack:
            seen = stack.pop()
            _record(facts, index, seen)
            stack += reversed(list(_children(seen)))
    return facts


def _children(seen: Seen) -> Iterator[Seen]:
    node, scope = seen.node, seen.scope
    if isinstance(node, FunctionNode):
        inner = Scope(scope)
        _bind_parameters(node, inner, scope)
        outside = [*node.args.defaults, *(d for d in node.args.kw_defaults if d)]
        outside += node.decorator_list if not isinstance(node, ast.Lambda) else []
        yield from (Seen(child, scope, seen.function) for child in outside)
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        yield from (Seen(child, inner, node) for child in body)
    elif isinstance(node, ast.ClassDef):
        inner = Scope(scope, is_class=True)
        for child in [*node.decorator_list, *node.bases, *(k.value for k in node.keywords)]:
            yield Seen(child, scope, seen.function)
        yield from (Seen(child, inner, seen.function) for child in node.body)
    else:
        for part in ast.iter_child_nodes(node):
            if not isinstance(part, LEAVES):
                yield Seen(part, scope, seen.function)


def _bind_parameters(node: FunctionNode, inner: Scope, outer: Scope) -> None:
    a = node.args
    positional = [*a.posonlyargs, *a.args]
    for arg in [*positional, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]:
        inner.bind(arg.arg, f"<{arg.arg}>")
    defaults = [
        *zip(reversed(positional), reversed(a.defaults), strict=False),
        *zip(a.kwonlyargs, a.kw_defaults, strict=True),
    ]
    for arg, default in defaults:
        if default is not None:
            inner.bind(arg.arg, default, outer)


def _record(facts: Facts, index: int, seen: Seen) -> None:
    node, scope = seen.node, seen.scope
    match node:
        case ast.Call():
            facts.calls.append((index, seen))
        case ast.Import(names=aliases):
            for alias in aliases:
                scope.bind(
                    alias.asname or alias.name.split(".")[0], alias.name if alias.asname else alias.name.split(".")[0]
                )
                facts.imports.append((index, alias.name, node))
        case ast.ImportFrom(names=aliases):
            _import_from(facts, index, node, scope)
        case ast.Assign(targets=targets, value=value):
            facts.assignments.append((index, seen))
            for target in targets:
                _bind(facts, target, value, scope)
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
            _bind(facts, target, value, scope)
        case ast.AugAssign(target=ast.Name(id=name)):
            scope.bind(name, None)
        case ast.For() | ast.AsyncFor() | ast.comprehension():
            listed = node.iter.elts if isinstance(node.iter, ast.Tuple | ast.List) else None
            for item in listed or [ast.Subscript(node.iter, ast.Constant(0), ast.Load())]:
                _bind(facts, node.target, item, scope)
        case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
            _bind(facts, target, value, scope)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            scope.bind(name, None)
        case ast.ExceptHandler(name=str() as name):
            scope.bind(name, None)


def _import_from(facts: Facts, index: int, node: ast.ImportFrom, scope: Scope) -> None:
    module = "." * node.level + (node.module or "")
    facts.imports.append((index, module, node))
    for alias in node.names:
        if alias.name == "*":
            facts.names.stars.append(module)
        else:
            scope.bind(alias.asname or alias.name, f"{module}.{alias.name}")


def _bind(facts: Facts, target: ast.expr, value: ast.expr, scope: Scope) -> None:
    match target:
        case ast.Name(id=name):
            scope.bind(name, value)
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=attr):
            facts.names.attributes.setdefault(attr, []).append((value, scope))
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            parts = value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(elts) else None
            for number, part in enumerate(elts):
                item = parts[number] if parts else ast.Subscript(value, ast.Constant(number), ast.Load())
                _bind(facts, part, item, scope)
        case ast.Starred(value=inner):
            _bind(facts, inner, ast.Subscript(value, ast.Constant(0), ast.Load()), scope)
