"""labkit plan, labkit trials: before a long run, and after several short ones."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from labkit.commands.words import add_json, add_settings, add_targets, progress, say, settings, show
from labkit.errors import ConfigError
from labkit.plan import check, plan
from labkit.trials import trials


def add(verbs: Any) -> None:
    """Describe the verbs of this page."""
    verb = verbs.add_parser("plan", help="measure a sample, and plan time, cost, memory, disk and saves")
    verb.description = "A short measured sample, then the arithmetic. --check compares a run with its stored plan."
    verb.add_argument("recipe", nargs="?", help="digits, names, or path/to/file.py:attribute")
    add_targets(verb)
    add_settings(verb)
    verb.add_argument("--price", type=float, metavar="P", help="of one device for one hour")
    verb.add_argument("--currency", default="EUR", help="of the price, default EUR")
    verb.add_argument("--devices", type=int, default=1, help="how many are paid for while the run lasts, default 1")
    verb.add_argument("--failures-per-day", type=float, help="how often a run dies; gives a checkpoint interval")
    verb.add_argument("--tolerate", help="work that may be lost, such as 30s, 10min or 2h")
    verb.add_argument("--sample", type=float, default=3.0, metavar="SECONDS", help="length of the sample, default 3")
    verb.add_argument("--plans", type=Path, default=Path("plans"), metavar="DIR", help="where plans are stored")
    verb.add_argument("--check", type=Path, metavar="RUN", help="compare this run with its plan")
    add_json(verb)
    verb.set_defaults(run=_plan)

    verb = verbs.add_parser("trials", help="compare values of one setting over seeds at equal budget")
    verb.description = "Fresh processes, resumable; compared in pairs, with an interval: better, worse, or cannot tell."
    verb.add_argument("recipe", help="digits, names, or path/to/file.py:attribute")
    verb.add_argument("--vary", required=True, metavar="NAME=A,B", help="one setting; first value: baseline")
    verb.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 0 to N - 1, default 5")
    verb.add_argument("--budget", required=True, metavar="NAME=N", help="the same for all: updates=200, epochs=5, ...")
    verb.add_argument("--folder", type=Path, default=Path("runs/trials"), help="where the runs lie")
    verb.add_argument("--jobs", type=int, default=2, help="processes side by side")
    add_settings(verb)
    add_json(verb)
    verb.set_defaults(run=_trials)


def _plan(asked: argparse.Namespace) -> int:
    if asked.check is not None:
        found = check(asked.check, asked.plans)
        show(asked, str(found), found.to_dict())
        return 0 if found.within else 1
    if asked.recipe is None:
        raise ConfigError("neither a recipe nor --check", "what to plan", "for example: labkit plan digits --epochs 10")
    with progress(None, "") as bar:
        made = plan(
            asked.recipe, price=asked.price, currency=asked.currency, devices=asked.devices,
            failures_per_day=asked.failures_per_day, sample_seconds=asked.sample,
            tolerate_seconds=None if asked.tolerate is None else seconds(asked.tolerate),
            progress=lambda text: bar.set_description_str(text), **settings(asked),
        )  # fmt: skip
    path = asked.plans / f"{made.key}.json"
    made.store(path)
    show(asked, str(made), made.to_dict())
    if not asked.json:
        say(f"stored as {path}")
    return 0


_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float:
    """30s, 10min, 1.5h or 1d in seconds. Raises ConfigError."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*(s|min|h|d)\s*", text)
    if match is None:
        raise ConfigError(f"a time of {text!r}", "a number and s, min, h or d", "for example 10min")
    return float(match[1]) * _UNITS[match[2]]


def _trials(asked: argparse.Namespace) -> int:
    name, equals, values = asked.vary.partition("=")
    goal, also, number = asked.budget.partition("=")
    if not equals or not also:
        raise ConfigError(f"--vary {asked.vary!r} --budget {asked.budget!r}", "NAME=A,B and NAME=N", "see --help")
    with progress(None, "") as bar:
        found = trials(
            asked.recipe, vary={name: values.split(",")}, seeds=asked.seeds, folder=asked.folder, jobs=asked.jobs,
            progress=lambda text: bar.set_description_str(text), **{**settings(asked), goal: number},
        )  # fmt: skip
    show(asked, str(found), found.to_dict())
    return 0
