"""From parsed pieces to findings: every call meets the rules, every allow comment its finding (lesson 10)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Final

from labkit.review import local
from labkit.review.calls import CALLS, IMPORTS, KEYWORDS, Call
from labkit.review.deletions import deletions
from labkit.review.names import UNKNOWN
from labkit.review.network import truthy
from labkit.review.report import Allowed, Finding
from labkit.review.rules import RULES
from labkit.review.settings import settings_of, switched_off
from labkit.review.sources import Allow, Source
from labkit.review.view import Hit, Setting, View
from labkit.review.walk import Facts, Seen, collect

PARTIALS: Final = {
    "functools.partial",
    "builtins.map",
    "builtins.filter",
    "threading.Thread",
    "multiprocessing.Process",
}


@dataclass(frozen=True)
class Draft:
    """A hit with its place: the piece, the first and the last line."""

    piece: int
    line: int
    end: int
    rule: str
    hit: Hit
    names: frozenset[str] = frozenset()


@dataclass
class Outcome:
    """Everything the review of one source gives."""

    findings: list[Finding]
    allowed: list[Allowed]
    facts: Facts
    views: list[tuple[int, View]]


def review_source(source: Source) -> Outcome:
    """Judge one source; pieces of a notebook share their names."""
    facts = collect([piece.tree for piece in source.pieces])
    settings = dict(settings_of(source, facts))
    views = [(index, view) for index, seen in facts.calls for view in _views(source, facts, seen, settings)]
    drafts = [draft for index, view in views for draft in _call_drafts(index, view)]
    drafts += [_draft(index, view, "delete", hit) for index, view, hit in deletions(views)]
    drafts += _imports(facts)
    drafts += _assigned(facts)
    findings: list[Finding] = []
    allowed: list[Allowed] = []
    used: set[tuple[int, Allow]] = set()
    for draft in dict.fromkeys(drafts):
        finding = _finding(source, draft)
        here = (source.pieces[draft.piece].cell or 0, draft.line)
        reason = switched_off(draft.rule, draft.names, here, settings)
        lines = {*range(draft.line, draft.end + 1)}
        answers = [a for a in source.pieces[draft.piece].allows if draft.rule in a.rules and a.lines & lines]
        used |= {(draft.piece, a) for a in answers}
        reason = next((a.reason for a in answers if a.reason), reason)
        if reason:
            allowed.append(Allowed(finding, reason))
        else:
            findings.append(finding)
    findings += [_finding(source, d) for d in _idle_allows(source, used)]
    return Outcome(findings, allowed, facts, views)


def _finding(source: Source, draft: Draft) -> Finding:
    rule, hit = RULES[draft.rule], draft.hit
    return Finding(
        source.path,
        draft.line,
        source.pieces[draft.piece].cell,
        draft.rule,
        hit.severity or rule.severity,
        hit.what,
        rule.why,
        hit.remedy or rule.remedy,
        hit.confidence,
    )


def _idle_allows(source: Source, used: set[tuple[int, Allow]]) -> Iterator[Draft]:
    for index, piece in enumerate(source.pieces):
        for allow in piece.allows:
            unknown = sorted(allow.rules - RULES.keys())
            if unknown or not allow.rules:
                what = f"the allow comment names no rule that exists{': ' + ', '.join(unknown) if unknown else ''}"
            elif (index, allow) not in used:
                what = f"the allow comment for {', '.join(sorted(allow.rules))} finds nothing to allow here"
            elif not allow.reason:
                what = "the allow comment gives no reason and is not counted"
            else:
                continue
            yield Draft(index, allow.line, allow.line, "allow", Hit(what))


def _views(source: Source, facts: Facts, seen: Seen, settings: dict[str, Setting]) -> Iterator[View]:
    node = seen.node
    assert isinstance(node, ast.Call)
    names = facts.names.resolve(node.func, seen.scope)
    yield View(node, names, seen.scope, seen.function, facts.names, source.pins, settings)
    if names & PARTIALS:  # the function is handed over and called elsewhere
        keyed = next((k.value for k in node.keywords if k.arg == "target"), None)
        handed = keyed or next(iter(node.args), None)
        inner = facts.names.resolve(handed, seen.scope) if handed is not None else frozenset()
        if inner:
            yield View(node, inner, seen.scope, seen.function, facts.names, source.pins, settings, skip=1)


def _call_drafts(index: int, view: View) -> Iterator[Draft]:
    told: set[str] = set()
    for pattern, call in _matching(view):
        if call.rule in told and call.rule != "shell":
            continue
        for hit in _hits(call, view, pattern):
            told.add(hit.rule or call.rule)
            yield _draft(index, view, hit.rule or call.rule, hit)
    for rule, hit in _keyword_hits(view):
        if rule not in told:
            told.add(rule)
            yield _draft(index, view, rule, hit)


def _draft(index: int, view: View, rule: str, hit: Hit) -> Draft:
    return Draft(index, view.node.lineno, view.node.end_lineno or view.node.lineno, rule, hit, view.names)


@cache
def _indexed() -> tuple[dict[str, list[tuple[str, Call]]], dict[str, list[tuple[str, Call]]]]:
    """The patterns by last part, and those whose last part holds a * by root."""
    by_last: dict[str, list[tuple[str, Call]]] = {}
    by_root: dict[str, list[tuple[str, Call]]] = {}
    for call in CALLS:
        for pattern in call.patterns.split():
            root, last = pattern.split(".", 1)[0], pattern.rsplit(".", 1)[-1]
            (by_root.setdefault(root, []) if "*" in last else by_last.setdefault(last, [])).append((pattern, call))
    return by_last, by_root


def _matching(view: View) -> Iterator[tuple[str, Call]]:
    by_last, by_root = _indexed()
    for name in sorted(view.names):
        last, root = name.rsplit(".", 1)[-1], name.split(".", 1)[0]
        for pattern, call in [*by_last.get(last, ()), *by_root.get(root, ())]:
            same_end = fnmatchcase(last, pattern.rsplit(".", 1)[-1]) and not last.endswith(("()", "[]"))
            if same_end and not pattern.startswith(".") and fnmatchcase(name, pattern):
                yield pattern, call
    for pattern, call in by_last.get(view.method or "", ()):
        if pattern.startswith("."):
            yield pattern, call


def _hits(call: Call, view: View, pattern: str) -> list[Hit]:
    found = call.check(view) if call.check else Hit(f"{view.text} {call.what}")
    hits = found if isinstance(found, list) else [found] if found else []
    guessed = len(view.names) > 1 or (pattern.startswith(".") and not any(n[0] != "<" for n in view.names))
    return [
        replace(
            h,
            severity=h.severity or call.severity if not h.rule else h.severity,
            confidence="medium" if guessed and h.confidence == "high" else h.confidence,
        )
        for h in hits
    ]


def _keyword_hits(view: View) -> Iterator[tuple[str, Hit]]:
    given = dict(view.keywords())
    for keyword in KEYWORDS:
        if keyword.name not in given or not (keyword.on == "*" or any(fnmatchcase(n, keyword.on) for n in view.names)):
            continue
        if keyword.name.startswith("hub_") and "push_to_hub" in given and view.value("push_to_hub") is not UNKNOWN:
            continue  # then push_to_hub itself says whether anything is sent
        value = view.value(keyword.name)
        if value is UNKNOWN and keyword.rule == "remote-code":
            yield keyword.rule, Hit(f"{view.text}: {keyword.name} is decided elsewhere", "medium", "low")
        elif value is not UNKNOWN and keyword.matters(value):
            yield keyword.rule, Hit(f"{keyword.name}={value!r} in {view.text} {keyword.what}", keyword.severity)
    for name, (expr, scope) in given.items():
        if local.keyed_literal(name, view.table.constant(expr, scope)):
            yield "secret", Hit(f"{name}= in {view.text} holds what looks like a real key (not shown)")
    if view.text.endswith(("login", "HfApi")) and local.keyed_literal("token", view.value("token", 0)):
        yield "secret", Hit(f"{view.text} is given what looks like a real key (not shown)")


def _imports(facts: Facts) -> Iterator[Draft]:
    told: set[str] = set()
    for index, module, node in facts.imports:
        for known in IMPORTS:
            if module.split(".")[0] == known.package and known.package not in told:
                told.add(known.package)
                place = (index, node.lineno, node.end_lineno or node.lineno)
                yield Draft(*place, known.rule, Hit(known.what, known.severity), frozenset({module}))


def _assigned(facts: Facts) -> Iterator[Draft]:
    for index, seen in facts.assignments:
        node = seen.node
        assert isinstance(node, ast.Assign)
        value = facts.names.constant(node.value, seen.scope)
        names = facts.names.resolve(node.value, seen.scope)
        for target in node.targets:
            name = (
                target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else ""
            )
            if isinstance(target, ast.Subscript):
                name = str(facts.names.constant(target.slice, seen.scope))
            line = (index, node.lineno, node.end_lineno or node.lineno)
            if local.keyed_literal(name, value):
                yield Draft(*line, "secret", Hit(f"{name} holds what looks like a real key (not shown)"))
            if "ssl._create_unverified_context" in names:
                yield Draft(*line, "unverified", Hit("certificate checks are switched off for the whole program"))
            if name == "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" and isinstance(value, str) and truthy(value):
                yield Draft(*line, "torch-load", Hit(f"{name}={value} makes every torch.load unpickle"))
