"""labkit ledger: what was run, with what, how it ended, and which run made a file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labkit.commands.words import add_json, explained, show
from labkit.errors import ConfigError
from labkit.records.compare import diff_runs
from labkit.records.ledger import Ledger
from labkit.records.runs import Run, is_run_folder, note

RUNS = Path("runs")
VERBS = ("list", "show", "diff", "note", "made")
_NOTES = {
    "question": "what the run is to answer",
    "baseline": "what it is compared with",
    "guardrails": "what must not get worse",
    "next_decision": "what was decided from it, or will be",
    "text": "anything else",
}


def spelled_out(arguments: Sequence[str]) -> list[str]:
    """`labkit ledger [DIR]` means `labkit ledger list [DIR]`; a folder named like a verb is written ./show."""
    words = list(arguments)
    if words[:1] == ["ledger"] and (len(words) < 2 or words[1] not in (*VERBS, "-h", "--help")):
        words.insert(1, "list")
    return words


def add(verbs: Any) -> None:
    """Describe the verbs of this page."""
    verb = verbs.add_parser("ledger", help="list runs, show one, compare two, find which run made a file")
    verb.description = "The runs below a folder (default: runs). `labkit ledger [DIR]` alone lists them."
    below = verb.add_subparsers(dest="ledger_verb", metavar="VERB", required=True)

    one = explained(below, "list", "all runs, or those that fit (also: labkit ledger [DIR])")
    one.add_argument("folder", nargs="?", type=Path, default=RUNS, metavar="DIR", help="default: runs")
    one.add_argument(
        "--where", action="append", default=[], metavar="NAME=VALUE",
        help="only runs with this value of a column or a setting, e.g. status=failed, rate=0.1, run='a/*'; repeatable",
    )  # fmt: skip
    one.add_argument("--csv", type=Path, metavar="FILE", help="write the list as CSV")
    add_json(one)
    one.set_defaults(run=_list)

    one = explained(below, "show", "one run whole")
    _run_words(one, "a")
    one.set_defaults(run=_show)

    one = explained(below, "diff", "what changed between two runs in config, environment, data and code")
    _run_words(one, "a", "b")
    one.set_defaults(run=_diff)

    one = explained(below, "note", "record " + ", ".join(name.replace("_", " ") for name in _NOTES))
    _run_words(one, "a")
    for name, text in _NOTES.items():
        one.add_argument(f"--{name.replace('_', '-')}", dest=name, metavar="TEXT", help=text)
    one.set_defaults(run=_note)

    one = explained(below, "made", "which run made this file or checkpoint, by its digest")
    one.add_argument("file", type=Path, metavar="FILE", help="a file, or a folder of a checkpoint or an export")
    _in(one)
    one.set_defaults(run=_made)


def _run_words(verb: argparse.ArgumentParser, *names: str) -> None:
    for name in names:
        metavar = "RUN" if len(names) == 1 else name.upper()
        verb.add_argument(name, metavar=metavar, help="a run folder, or a run's name in the list")
    _in(verb)


def _in(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--in", dest="folder", type=Path, default=RUNS, metavar="DIR", help="the runs; default: runs")
    add_json(verb)


def _list(asked: argparse.Namespace) -> int:
    ledger = Ledger(asked.folder)
    if asked.where:
        ledger = ledger.where(**_pairs(asked.where))
    if asked.csv:
        ledger.to_csv(asked.csv)
        show(asked, f"{len(ledger)} runs written to {asked.csv}", {"runs": len(ledger), "csv": str(asked.csv)})
        return 0
    show(asked, str(ledger), ledger.table())
    return 0


def _show(asked: argparse.Namespace) -> int:
    run = _run(asked, asked.a)
    data = {
        **run.summary(), "attempts": [asdict(attempt) for attempt in run.attempts], "config": run.config,
        "environment": run.environment,
    }  # fmt: skip
    show(asked, str(run), data)
    return 0


def _diff(asked: argparse.Namespace) -> int:
    found = diff_runs(_run(asked, asked.a), _run(asked, asked.b))
    show(asked, str(found), asdict(found))
    return 0


def _note(asked: argparse.Namespace) -> int:
    run = _run(asked, asked.a)
    fields = {name: text for name in _NOTES if (text := getattr(asked, name)) is not None}
    if not fields:
        wanted = ", ".join(f"--{name.replace('_', '-')}" for name in _NOTES)
        raise ConfigError("there is nothing to note", f"one of {wanted}", 'for example --question "does it converge?"')
    note(run.folder, **fields)
    show(asked, f"noted in {run.name}: " + ", ".join(fields), {"run": run.name, **fields})
    return 0


def _made(asked: argparse.Namespace) -> int:
    makers = Ledger(asked.folder).made(asked.file)
    text = "\n".join(map(str, makers)) or f"no run below {asked.folder} recorded {asked.file}"
    show(asked, text, [{"run": maker.run.name, "evidence": maker.evidence} for maker in makers])
    return 0 if makers else 1


def _run(asked: argparse.Namespace, name: str) -> Run:
    """A run by its folder, wherever that is, or by its name in the ledger."""
    if is_run_folder(Path(name)):
        return Run(Path(name), Path(name).as_posix())
    return Ledger(asked.folder)[name]


def _pairs(words: Sequence[str]) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"--where {word}", "NAME=VALUE", "for example status=finished")
        found[name] = value
    return found
