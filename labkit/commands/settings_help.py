"""What `labkit train --help` says about --set: every field of RunConfig, and the options of the shipped recipes.

The lines are the comments beside the fields in config.py, read from its source, so they cannot go out of date.
"""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from labkit.config import RunConfig
from labkit.recipes import SHIPPED, find

_FIELD = re.compile(r"    (?P<name>\w+): (?P<kind>[^=#]+?)(?: = (?P<default>[^#]+?))?(?:  # (?P<text>.*))?$")
_GROUP = re.compile(r"    # (?P<title>.*)$")
_NO_SETTING = {"recipe", "options"}


@dataclass(frozen=True)
class Field:
    """One setting as it is written in config.py."""

    group: str
    name: str
    default: str
    text: str
    choices: str


def fields_in_words() -> list[Field]:
    """Every field that --set accepts, in the order of RunConfig, with the comment beside it ("" without one)."""
    return list(_parsed(inspect.getsource(RunConfig).splitlines()))


def _parsed(lines: list[str]) -> Iterator[Field]:
    group = ""
    for line in lines:
        if "def " in line:
            return
        if title := _GROUP.match(line):
            group = title["title"]
        elif (found := _FIELD.match(line)) and found["name"] not in _NO_SETTING:
            default = "()" if found["default"] is None else found["default"].strip('"')
            yield Field(group or "which run", found["name"], default, found["text"] or "", _choices(found["kind"]))


def _choices(kind: str) -> str:
    """The values of a Literal, as the annotation names them."""
    found = re.search(r"Literal\[(.*)\]", kind)
    return ", ".join(part.strip().strip('"') for part in found[1].split(",")) if found else ""


def settings_in_words(width: int = 100) -> str:
    """All settings, a line or two each, under the headings of config.py; then the options of the shipped recipes."""
    lines, group = ["settings (--set NAME=VALUE), with their defaults; a recipe may prefer others:"], None
    for field in fields_in_words():
        if field.group != group:
            group = field.group
            lines.append(f"  {group}")
        lines += _entry(f"{field.name}={_shown(field.default)}", field.text or "", field.choices, width)
    for name in SHIPPED:
        lines.append(f"  options of the recipe {name}")
        for option, facts in find(name).options.items():
            choices = ", ".join(map(str, facts.choices))
            lines += _entry(f"{option}={_shown(str(facts.default))}", facts.help, choices, width)
    return "\n".join(lines)


def _entry(head: str, text: str, choices: str, width: int) -> list[str]:
    words = "; ".join(filter(None, [text, f"one of {choices}" if choices else ""]))
    return textwrap.wrap(f"{head:<28} {words}".rstrip(), width, initial_indent=" " * 4, subsequent_indent=" " * 33)


def _shown(default: str) -> str:
    return {"()": "", "None": "none", "True": "true", "False": "false"}.get(default, default)


def with_settings(verb: argparse.ArgumentParser) -> None:
    """Make the help of a verb end with all settings; they are gathered only when it is asked for."""
    plain = verb.format_help
    verb.format_help = lambda: f"{plain()}\n{settings_in_words()}\n"  # type: ignore[method-assign]
