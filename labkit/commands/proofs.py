"""labkit compare, labkit prove, labkit ablate: equality as a detector."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from labkit.commands.words import add_json, add_settings, add_targets, progress, settings, show
from labkit.proof import PIECES, ablate, compare, prove


def add(verbs: Any) -> None:
    """Describe the verbs of this page."""
    verb = verbs.add_parser("compare", help="are two runs equal, and if not, where do they part")
    verb.description = "Equal, or the first update and the first quantity that differ, with both values."
    verb.add_argument("left", type=Path, metavar="A", help="a run folder")
    verb.add_argument("right", type=Path, metavar="B", help="another")
    add_json(verb)
    verb.set_defaults(run=_compare)

    verb = verbs.add_parser("prove", help="does this recipe resume exactly")
    verb.description = "One straight run; for each stop, a run continued in a fresh process; compared bit for bit."
    verb.add_argument("recipe", nargs="?", default="digits", help="digits, names, or path/to/file.py:attribute")
    add_targets(verb)
    add_settings(verb)
    verb.add_argument("--stops", default="all", help="all, or 3,7,8 (one run each), or 3+5+8 (three in one run)")
    verb.add_argument("--folder", type=Path, help="keep the runs of the proof here")
    verb.add_argument("--jobs", type=int, default=2, help="processes side by side")
    verb.add_argument("--matrix", action="store_true", help="the whole covering table of recipes and settings")
    add_json(verb)
    verb.set_defaults(run=_prove)

    verb = verbs.add_parser("ablate", help="drop one piece of state at a resume and see what happens")
    verb.description = "For each piece: the first difference, whether the loss curve would have told, where it hurts."
    verb.add_argument("recipe", help="digits, names, or path/to/file.py:attribute")
    add_targets(verb)
    add_settings(verb)
    verb.add_argument("--stop", type=int, help="boundary of the resume; default: past the middle, off an epoch's edge")
    verb.add_argument(
        "--drop", action="append", choices=sorted(PIECES), metavar="PIECE",
        help="only this piece, repeatable; default: all of " + ", ".join(sorted(PIECES)),
    )  # fmt: skip
    add_json(verb)
    verb.set_defaults(run=_ablate)


def _compare(asked: argparse.Namespace) -> int:
    found = compare(asked.left, asked.right)
    show(asked, str(found), found.to_dict())
    return 0 if found.equal else 1


def _prove(asked: argparse.Namespace) -> int:
    if asked.matrix:
        from labkit.proof.matrix import prove_matrix

        with progress(None, "stops") as bar:
            table = prove_matrix(progress=lambda text: bar.set_description_str(text))
        show(asked, str(table), table.to_dict())
        return 0 if table.exact else 1
    given = settings(asked)
    if not any(name in given for name in ("updates", "epochs", "examples", "tokens")):
        given["updates"] = 30
    with progress(None, "stops") as bar:
        found = prove(
            asked.recipe, stops=asked.stops, folder=asked.folder, jobs=asked.jobs,
            progress=lambda text: bar.set_description_str(text), **given,
        )  # fmt: skip
    show(asked, str(found), found.to_dict())
    return 0 if found.exact else 1


def _ablate(asked: argparse.Namespace) -> int:
    given = settings(asked)
    given.setdefault("updates", 30)
    with progress(None, "pieces") as bar:
        found = ablate(
            asked.recipe, stop=asked.stop, pieces=asked.drop,
            progress=lambda text: bar.set_description_str(text), **given,
        )  # fmt: skip
    show(asked, str(found), found.to_dict())
    return 0
