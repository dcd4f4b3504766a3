"""labkit train, labkit resume, labkit replay, labkit verify: a run and its checkpoints."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.commands.words import add_json, add_settings, add_targets, progress, say, settings, show
from labkit.identity import OVERRIDES
from labkit.run import Outcome, Session, replay, resume, start, verify

STATUS = {"finished": 0, "early stopped": 0, "stopped": 3}


def add(verbs: Any) -> None:
    """Describe the verbs of this page."""
    verb = verbs.add_parser("train", help="start a run in a new folder", description="Start a run in a new folder.")
    verb.add_argument("recipe", help="digits, names, or path/to/file.py:attribute")
    verb.add_argument("--run", dest="folder", type=Path, required=True, metavar="DIR", help="the run folder, new")
    add_targets(verb)
    add_settings(verb)
    verb.add_argument("--question", default="", help="what this run is to answer, for the ledger")
    verb.add_argument("--dry-run", action="store_true", help="one update and one validation batch, never to be resumed")
    add_json(verb)
    verb.set_defaults(run=_train)

    verb = verbs.add_parser("resume", help="continue a run")
    verb.description = "Continue a run from its newest good checkpoint."
    verb.add_argument("folder", type=Path, metavar="DIR", help="the run folder")
    add_targets(verb)
    add_settings(verb)
    verb.add_argument(
        "--override", action="append", default=[], choices=OVERRIDES, metavar="NAME",
        help="go on although this differs, marked inexact: " + ", ".join(OVERRIDES),
    )  # fmt: skip
    add_json(verb)
    verb.set_defaults(run=_resume)

    verb = verbs.add_parser("replay", help="run to a refused attempt again")
    verb.description = "From the last checkpoint before it, in memory; the run folder is only read."
    verb.add_argument("folder", type=Path, metavar="DIR", help="the run folder")
    verb.add_argument("--attempt", type=int, help="number of the attempt; default: the last incident")
    add_json(verb)
    verb.set_defaults(run=_replay)

    verb = verbs.add_parser("verify", help="check a checkpoint or all of a run")
    verb.description = "Read every byte, compare digests, load under restriction."
    verb.add_argument("path", type=Path, help="a checkpoint folder or a run folder")
    add_json(verb)
    verb.set_defaults(run=_verify)


def _train(asked: argparse.Namespace) -> int:
    given = settings(asked)
    if asked.dry_run:
        given.setdefault("updates", 1)
    with start(asked.recipe, asked.folder, question=asked.question, **given) as session:
        if asked.dry_run:
            _notices(session)
            record = session.dry_run()
            loss = record.loss_sum / max(record.loss_count, 1)
            text = f"dry run: one update (loss {loss:.6g}) and one validation batch"
            show(asked, text, {"status": "dry run", "loss_sum": record.loss_sum, "loss_count": record.loss_count})
            return 0
        return _work(asked, session)


def _resume(asked: argparse.Namespace) -> int:
    with resume(asked.folder, overrides=asked.override, **settings(asked)) as session:
        if not asked.json:
            say(f"continuing {session.folder.name} from update {session.update}")
        return _work(asked, session)


def _work(asked: argparse.Namespace, session: Session) -> int:
    _notices(session)
    with progress(session.config.updates, "updates", session.update) as bar:
        session.observers.append(_mover(bar))
        outcome = session.train()
    _notices(session)
    show(asked, _words(session, outcome), _plain(session, outcome))
    return STATUS[outcome.status]


def _mover(bar: Any) -> Callable[[Any], None]:
    def move(record: Any) -> None:
        bar.update(record.update - bar.n)
        if record.loss_count and not bar.disable:
            bar.set_postfix_str(f"loss {record.loss_sum / record.loss_count:.4f}", refresh=False)

    return move


def _notices(session: Session) -> None:
    for text in session.notices:
        say(f"note: {text}")
    session.notices = ()


def _words(session: Session, outcome: Outcome) -> str:
    lines = [f"{outcome.status}: {outcome.reason}; {session.folder.name} is at update {outcome.update}"]
    for name, total in session.totals.items():
        if total.count:
            lines.append(f"validation {name} {total.mean:.6g} ({total.count} counted, after the last evaluation)")
    if outcome.status == "stopped":
        lines.append(f"to go on: labkit resume {session.folder.path}")
    return "\n".join(lines)


def _plain(session: Session, outcome: Outcome) -> dict[str, Any]:
    return {
        "status": outcome.status, "reason": outcome.reason, "update": outcome.update,
        "updates_done": outcome.updates_done, "run": str(session.folder.path),
        "validation": {name: [total.sum, total.count] for name, total in session.totals.items()},
    }  # fmt: skip


def _replay(asked: argparse.Namespace) -> int:
    found = replay(asked.folder, asked.attempt)
    show(asked, str(found), found.to_dict())
    return 0 if found.reproduced else 1


def _verify(asked: argparse.Namespace) -> int:
    rows = verify(asked.path)
    lines = [f"{row.path.name}: {row.reason or 'good'}" for row in rows]
    data = [{"checkpoint": row.path.name, "good": row.reason is None, "reason": row.reason} for row in rows]
    show(asked, "\n".join(lines), data)
    return 0 if all(row.reason is None for row in rows) else 1


