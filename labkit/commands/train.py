"""labkit train, labkit resume, labkit replay, labkit verify: a run and its checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from labkit.commands.line import following
from labkit.commands.settings_help import with_settings
from labkit.commands.words import GOALS, add_json, add_settings, add_targets, say, settings, show
from labkit.errors import LabkitError
from labkit.identity import OVERRIDES
from labkit.records.stages import Profile
from labkit.run import Outcome, Session, replay, resume, start, verify

_NOTES = {
    "question": "what this run is to answer, for the ledger",
    "baseline": "what it is compared with",
    "guardrails": "what must not get worse",
    "next_decision": "what will be decided from it",
}
KINDS = ("data", "transfer", "forward", "backward", "measure", "optimizer", "ema", "record", "evaluation", "checkpoint")
STATUS = {"finished": 0, "early stopped": 0, "stopped": 3}


def add(verbs: Any) -> None:
    """Describe the verbs of this page."""
    verb = verbs.add_parser("train", help="start a run in a new folder", description="Start a run in a new folder.")
    verb.add_argument("recipe", help="digits, names, or path/to/file.py:attribute")
    verb.add_argument("--run", dest="folder", type=Path, required=True, metavar="DIR", help="the run folder, new")
    add_targets(verb)
    add_settings(verb)
    for name, text in _NOTES.items():
        verb.add_argument(f"--{name.replace('_', '-')}", default="", metavar="TEXT", help=text)
    verb.add_argument("--dry-run", action="store_true", help="one update and one validation batch, never to be resumed")
    add_json(verb)
    with_settings(verb)
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
    if asked.dry_run and not any(name in given for name in GOALS):
        given["updates"] = 1
    words = {name: getattr(asked, name) for name in _NOTES}
    with start(asked.recipe, asked.folder, **words, **given) as session:
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
    notices = _notices(session)
    try:
        with following(session):
            outcome = session.train()
    except LabkitError as error:
        notices += _notices(session)
        return _failed(asked, session, error, notices)
    notices += _notices(session)
    show(asked, _words(session, outcome), _plain(session, outcome, notices))
    return STATUS[outcome.status]


def _failed(asked: argparse.Namespace, session: Session, error: LabkitError, notices: tuple[str, ...]) -> int:
    """A run that labkit itself ended: it was tried, so the status is 1; the records say in which stage."""
    say(f"labkit {asked.verb}: {type(error).__name__}: {error}")
    data = {"status": "failed", "error": type(error).__name__, "reason": str(error), "update": session.update}
    text = f"failed: {session.folder.name} is at update {session.update}; its newest checkpoint is as it was"
    show(asked, text, {**data, "run": str(session.folder.path), "notices": list(notices)})
    return 1


def _notices(session: Session) -> tuple[str, ...]:
    """Say what the session has to tell, once."""
    told, session.notices = session.notices, ()
    for text in told:
        say(f"note: {text}")
    return told


def _words(session: Session, outcome: Outcome) -> str:
    lines = [f"{outcome.status}: {outcome.reason}; {session.folder.name} is at update {outcome.update}"]
    for name, total in session.totals.items():
        if total.count:
            lines.append(f"validation {name} {total.mean:.6g} ({total.count} counted, after the last evaluation)")
    if session.profile is not None:
        lines.append(f"where the time went\n{by_kind(session.profile)}")
    if outcome.status == "stopped":
        lines.append(f"to go on: labkit resume {session.folder.path}")
    return "\n".join(lines)


def _plain(session: Session, outcome: Outcome, notices: tuple[str, ...]) -> dict[str, Any]:
    return {
        "status": outcome.status, "reason": outcome.reason, "update": outcome.update,
        "updates_done": outcome.updates_done, "run": str(session.folder.path),
        "validation": {name: [total.sum, total.count] for name, total in session.totals.items()},
        "seconds_used": session.seconds_used, "examples": session.state.counters.examples,
        "tokens": session.state.counters.tokens, "notices": list(notices),
        "profile": None if session.profile is None else _profile(by_kind(session.profile)),
    }  # fmt: skip


def _profile(profile: Profile) -> dict[str, Any]:
    return {"seconds": profile.seconds, "wall_seconds": profile.wall, "overhead_seconds": profile.overhead}


def by_kind(profile: Profile) -> Profile:
    """The profile as people ask for it: every kind in one row, absent ones at 0, publishing under "checkpoint"."""
    seconds = dict.fromkeys(KINDS, 0.0)
    for name, spent in profile.seconds.items():
        kind = {"publish": "checkpoint", "first forward": "forward"}.get(name, name)
        seconds[kind] = seconds.get(kind, 0.0) + spent
    return Profile(seconds, profile.wall, profile.overhead)


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


