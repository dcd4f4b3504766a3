"""labkit ledger: what was run, with what, how it ended, and which run made a file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from labkit.commands.words import add_json
from labkit.errors import ConfigError
from labkit.records.ledger import Ledger

NOTES = ("question", "baseline", "guardrails", "next_decision")


def add(verbs: Any) -> None:
    """Describe the verb of this page: with a folder alone it lists, the options ask for more."""
    verb = verbs.add_parser("ledger", help="list runs, show one, compare two, find which run made a file")
    verb.description = "The runs below a folder. Without an option: a list."
    verb.add_argument("folder", nargs="?", type=Path, default=Path("runs"), metavar="DIR", help="default: runs")
    verb.add_argument("--where", nargs="+", default=[], metavar="NAME=VALUE", help="only runs that hold this value")
    one = verb.add_mutually_exclusive_group()
    one.add_argument("--show", metavar="RUN", help="one run whole")
    one.add_argument("--diff", nargs=2, metavar=("A", "B"), help="what changed in config, environment, data and code")
    one.add_argument("--made", type=Path, metavar="FILE", help="which run made this file")
    one.add_argument("--note", metavar="RUN", help="record " + ", ".join(NOTES) + ", given with --set")
    one.add_argument("--csv", type=Path, metavar="FILE", help="write the list as CSV")
    verb.add_argument("--set", dest="notes", nargs="+", default=[], metavar="NAME=TEXT", help="for --note")
    add_json(verb)
    verb.set_defaults(run=_ledger)


def _ledger(asked: argparse.Namespace) -> int:
    ledger = Ledger(asked.folder)
    if asked.where:
        ledger = ledger.where(**_pairs(asked.where))
    if asked.note:
        ledger.note(asked.note, **_pairs(asked.notes))
        print(f"noted in {asked.note}")
    elif asked.show:
        print(ledger.show(asked.show))
    elif asked.diff:
        print(ledger.diff(*asked.diff))
    elif asked.made:
        return _made(ledger, asked.made)
    elif asked.csv:
        ledger.to_csv(asked.csv)
        print(f"{len(ledger.table())} runs written")
    else:
        print(ledger.to_json() if asked.json else ledger)
    return 0


def _made(ledger: Ledger, file: Path) -> int:
    makers = ledger.made(file)
    for maker in makers:
        print(maker)
    if not makers:
        print(f"no run below {ledger.folder} recorded {file.name}")
    return 0 if makers else 1


def _pairs(words: list[str]) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"{word!r}", "NAME=VALUE", "for example status=finished")
        found[name] = value
    return found
