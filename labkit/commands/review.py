"""labkit review: read an unfamiliar training script before running it."""

from __future__ import annotations

import argparse
from typing import Any

from labkit.commands.words import add_json


def add(verbs: Any) -> None:
    """Describe the verb of this page."""
    verb = verbs.add_parser("review", help="read an unfamiliar training script before running it")
    verb.description = "Static: files and notebooks are parsed, never imported. Status 1 when something was found."
    verb.add_argument("path", help="a Python file, a notebook, or a folder")
    verb.add_argument("--severity", choices=("low", "medium", "high"), default="low", help="the least that counts")
    add_json(verb)
    verb.set_defaults(run=_review)


def _review(asked: argparse.Namespace) -> int:
    from labkit.review import run

    text, status = run(asked.path, asked.severity, asked.json)
    print(text)
    return status
