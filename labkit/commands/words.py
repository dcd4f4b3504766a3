"""The words that several verbs share: --set, --json, and what is said to people."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from labkit.config import GOALS
from labkit.errors import ConfigError
from labkit.records.values import encode


def explained(verbs: Any, name: str, text: str) -> argparse.ArgumentParser:
    """A verb below a verb; the line that lists it also begins its own help."""
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=text)
    verb.description = f"{text[0].upper()}{text[1:]}."
    return verb


def add_settings(verb: argparse.ArgumentParser) -> None:
    """--set name=value, as often as one likes."""
    verb.add_argument(
        "--set", dest="settings", metavar="NAME=VALUE", action="append", nargs="+", default=[],
        help="a field of RunConfig or an option of the recipe, e.g. --set network=conv rate=0.01; "
             "`labkit train --help` lists them",
    )  # fmt: skip


def add_targets(verb: argparse.ArgumentParser) -> None:
    """Where the run ends; whichever goal is reached first ends it."""
    goals = verb.add_argument_group("where the run ends (the first one reached)")
    goals.add_argument("--updates", type=int, metavar="N", help="so many committed updates of the whole run")
    goals.add_argument("--epochs", type=int, metavar="N", help="so many passes over the training split")
    goals.add_argument("--examples", type=int, metavar="N", help="so many examples, counted as they are trained on")
    goals.add_argument("--tokens", type=int, metavar="N", help="so many valid targets (letters, labels)")
    goals.add_argument("--seconds", type=float, metavar="S", help="so many seconds at work, all processes together")


def add_json(verb: argparse.ArgumentParser) -> None:
    """--json: the answer as one JSON value on stdout."""
    verb.add_argument("--json", action="store_true", help="print the answer as JSON, for machines")


def settings(asked: argparse.Namespace) -> dict[str, Any]:
    """The settings of --set and of the goals. Raises ConfigError for a missing '=' or a name given twice."""
    found: dict[str, Any] = {}
    for word in (word for words in asked.settings for word in words):
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {word!r}", "name=value", "for example --set rate=0.01")
        if name in found:
            raise ConfigError(f"{name} is set twice", "one value", "leave one of them out")
        found[name] = value
    for name in GOALS:
        value = getattr(asked, name, None)
        if value is not None:
            if name in found:
                raise ConfigError(f"{name} is set twice", "one value", f"use --{name} or --set {name}=, not both")
            found[name] = value
    return found


def show(asked: argparse.Namespace, text: str, data: Any) -> None:
    """The answer on stdout, for people or for machines. In JSON, nan and infinities are the words of the records."""
    print(encode(data) if asked.json else text)


def for_people() -> bool:
    """True when someone watches: a terminal, and no CI."""
    return sys.stderr.isatty() and not os.environ.get("CI")


@contextmanager
def progress(total: int | None, unit: str, start: int = 0) -> Iterator[Any]:
    """One updating line on a terminal, silent elsewhere; closed in every exit."""
    from tqdm import tqdm

    bar = tqdm(
        total=total, initial=start, unit=" " + unit, disable=not for_people(), file=sys.stderr, leave=False,
        mininterval=0.2, dynamic_ncols=True, bar_format=None if total else "{desc}",
    )  # fmt: skip
    try:
        yield bar
    finally:
        bar.close()


def say(text: str) -> None:
    """A remark for people, on stderr."""
    print(text, file=sys.stderr, flush=True)
