"""Environment variables that the source itself sets, and what they keep still (lesson 10)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from labkit.review.calls import IMPORTS, QUIET
from labkit.review.names import Scope
from labkit.review.sources import Source
from labkit.review.view import Setting
from labkit.review.walk import Facts


def settings_of(source: Source, facts: Facts) -> Iterator[tuple[str, Setting]]:
    """Every environment variable that the source sets to a constant, in the order of the source."""

    def cell(index: int) -> int | None:
        return source.pieces[index].cell

    constant = facts.names.constant
    for index, seen in facts.assignments:
        node = seen.node
        assert isinstance(node, ast.Assign)
        for target in node.targets:
            if isinstance(target, ast.Subscript) and "os.environ" in facts.names.resolve(target.value, seen.scope):
                name, value = constant(target.slice, seen.scope), constant(node.value, seen.scope)
                if isinstance(name, str) and isinstance(value, str):
                    yield name, Setting(value, node.lineno, cell(index))
    for index, seen in facts.calls:
        node = seen.node
        assert isinstance(node, ast.Call)
        for name, value in _by_call(facts, node, seen.scope):
            yield name, Setting(value, node.lineno, cell(index))


def _by_call(facts: Facts, node: ast.Call, scope: Scope) -> Iterable[tuple[str, str]]:
    names = facts.names.resolve(node.func, scope)
    arguments = [facts.names.constant(a, scope) for a in node.args]
    texts = all(isinstance(a, str) for a in arguments) and len(arguments) == 2
    if texts and names & {"os.environ.setdefault", "os.putenv"}:
        return [(arguments[0], arguments[1])]
    if texts and "IPython.get_ipython().run_line_magic" in names and arguments[0] in ("env", "set_env"):
        name, _, value = arguments[1].replace("=", " ", 1).partition(" ")
        return [(name, value.strip())]
    if "os.environ.update" in names:
        pairs = [(k.arg, facts.names.constant(k.value, scope)) for k in node.keywords]
        for mapping in node.args:
            if isinstance(mapping, ast.Dict):
                both = zip(mapping.keys, mapping.values, strict=True)
                pairs += [(facts.names.constant(k, scope), facts.names.constant(v, scope)) for k, v in both]
        return [(k, v) for k, v in pairs if isinstance(k, str) and isinstance(v, str)]
    mode = next((facts.names.constant(k.value, scope) for k in node.keywords if k.arg == "mode"), None)
    return [("WANDB_MODE", mode)] if "wandb.init" in names and mode in ("offline", "disabled") else []


def switched_off(rule: str, names: frozenset[str], here: tuple[int, int], settings: Mapping[str, Setting]) -> str:
    """The setting that keeps a tracker or telemetry still, said in words; '' when there is none or it comes too late.

    here is (cell or 0, line) of the finding.
    """
    packages = {n.split(".")[0] for n in names}
    switches = [s for p in packages if rule == "tracker" for s in QUIET.get(p, ())]
    switches += [s for known in IMPORTS if rule == "telemetry" and known.package in packages for s in known.switches]
    for name, values in switches:
        setting = settings.get(name)
        if setting and setting.value.lower() in values.split() and (setting.cell or 0, setting.line) <= here:
            place = f"line {setting.line}" if setting.cell is None else f"cell {setting.cell} line {setting.line}"
            return f"{name}={setting.value} is set at {place}"
    return ""
