"""Start a run, or continue one in a fresh process (or the same): the two doors to a session. Lesson 04."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from labkit import identity, randomness
from labkit.build import Parts, apply_numerics, build, build_feed, preflight
from labkit.checkpoint import Found
from labkit.config import ENVIRONMENT_FIELDS, MAY_CHANGE, RunConfig, field_names, parse, unknown_name
from labkit.errors import CheckpointError, IdentityError, RunFolderError
from labkit.files import lock, write_text_durably
from labkit.recipe import Recipe, resolve
from labkit.recipes import find
from labkit.records.attempts import Attempt, AttemptLog, read_attempts
from labkit.records.environment import environment
from labkit.records.tails import last_record, truncate_after
from labkit.run.folder import RunFolder
from labkit.run.goals import check_target
from labkit.run.inspect import Checked, Replay, replay, verify
from labkit.run.session import Observer, Outcome, Session

__all__ = [
    "Checked", "Observer", "Outcome", "Replay", "RunFolder", "Session", "replay", "resume", "start", "verify",
]  # fmt: skip


def start(
    recipe: str | Recipe, folder: Path | str, *, reference: str | None = None, question: str = "", baseline: str = "",
    guardrails: str = "", next_decision: str = "", **settings: Any,
) -> Session:  # fmt: skip
    """A new run, with update 0 published; train() does the rest.

    recipe: "digits", "names", "file.py:attribute", or a Recipe object (reference then says how a fresh process finds
    it; without one the run can be continued only by passing the object to resume()).
    question, baseline, guardrails, next_decision: for the ledger, in your words.
    settings: RunConfig fields and the recipe's options. Nothing is written before all of them have been tried.
    Raises ConfigError, RecipeError, DataError and relatives; RunFolderError when a run is there already.
    """
    found = find(recipe) if isinstance(recipe, str) else recipe
    name = recipe if isinstance(recipe, str) else reference or f"object:{type(recipe).__qualname__}"
    config = resolve(found, name, settings)
    check_target(config)
    place = RunFolder(Path(folder))
    _refuse_occupied(place)
    callers = randomness.capture()
    try:
        policy = apply_numerics(config)
        parts = build(found, config)
        notices = preflight(parts)
        with ExitStack() as held:
            place.path.mkdir(parents=True, exist_ok=True)
            held.enter_context(lock(place.path))
            _refuse_occupied(place)
            run_id = uuid.uuid4().hex
            present = identity.identity(config, parts.state.model, found, parts.splits)
            env = environment()
            write_text_durably(place.environment, _json({**env, "numeric_policy": policy}))
            store = place.store(config, run_id)
            notices += _space_notice(store, parts)
            session = _open(
                place, parts, store, held, present=present, run_id=run_id, parent=None, overrides={}, exact=True,
                segment=0,
                seconds=0.0, saved_attempt=None, notices=notices, env=env,
                words={"question": question, "baseline": baseline, "guardrails": guardrails,
                       "next_decision": next_decision},
            )  # fmt: skip
            try:
                session.publish("start")
                place.write_config(run_id, config)
            except BaseException as error:
                session.failed(error)
                session.close()
                raise
            return session
    finally:
        randomness.restore({**callers, "generators": {}})


def resume(
    folder: Path | str, *, recipe: Recipe | None = None, overrides: Collection[str] = (), **settings: Any
) -> Session:
    """Continue a run from its newest verified checkpoint.

    settings may change only what is listed in config.MAY_CHANGE (a new target, for example); anything else is refused
    with both values. overrides: names from identity.OVERRIDES that may differ; the records then say so.
    Raises IdentityError, CheckpointError, RunLockedError and relatives before any record is changed.
    """
    place = RunFolder(Path(folder))
    meta = place.read_meta()
    config = _changed(place.read_config(), settings, overrides)
    if recipe is None and config.recipe.startswith("object:"):
        raise RunFolderError(
            f"the run was started with an object ({config.recipe.removeprefix('object:')})", "that recipe",
            "pass it: run.resume(folder, recipe=...)",
        )  # fmt: skip
    found = recipe or find(config.recipe)
    callers = randomness.capture()
    with ExitStack() as held:
        held.enter_context(lock(place.path))
        try:
            store = place.store(config, meta["run_id"])
            newest = store.newest()
            if newest.manifest["facts"]["dry_run"]:
                name = newest.path.name
                raise CheckpointError(f"{name} is the checkpoint of a dry run", "one of a real run", "start one")
            policy = apply_numerics(config)
            parts = build(found, config)
            present = identity.identity(config, parts.state.model, found, parts.splits)
            passed = identity.check(newest.manifest["facts"]["identity"], present, overrides)
            notices = preflight(parts)
            parts.state.restore(newest.payload)
            build_feed(parts, config).at(parts.state.cursor)  # a place outside the data is refused here
            return _continue(place, parts, store, held, meta, newest, present, passed, notices, policy)
        finally:
            randomness.restore({**callers, "generators": {}})


def _continue(
    place: RunFolder, parts: Parts, store: Any, held: ExitStack, meta: Mapping[str, Any], newest: Found,
    present: Mapping[str, Any], passed: list[identity.Mismatch], notices: list[str], policy: Mapping[str, Any],
) -> Session:  # fmt: skip
    """Everything fits: cut the records back to the restored boundary and open the next segment."""
    store.sweep()
    env = environment()
    earlier = read_attempts(place.path)
    saved, used = float(newest.manifest["facts"]["seconds_used"]), _seconds_used(place, newest, earlier)
    counters = parts.state.counters
    evaluated = counters.evaluated_update == counters.committed
    cut = truncate_after(place.trajectory, counters.attempted, evaluated=evaluated)
    truncate_after(place.monitors, counters.attempted)
    truncate_after(place.samples, counters.attempted if evaluated else counters.attempted - 1)
    if cut:
        lost = f"its {used - saved:.3g} s stay counted" if used > saved else "how long it took is not known"
        notices.append(f"what came after update {newest.update} is made again ({cut} records are kept in cut/); {lost}")
    for rejected in newest.rejected:
        notices.append(f"{rejected.path.name} is damaged ({rejected.reason}); update {newest.update} is used instead")
    notices += [f"{m.field} differs: checkpoint {m.saved!r}, now {m.present!r}; no longer exact" for m in passed]
    write_text_durably(place.environment, _json({**env, "numeric_policy": policy}))
    session = _open(
        place, parts, store, held, words={}, present=present, run_id=meta["run_id"],
        parent={"update": newest.update, "attempt": parts.state.counters.attempted},
        overrides={m.field: [m.saved, m.present] for m in passed},
        exact=bool(newest.manifest["facts"]["exact"]) and not passed, segment=len(earlier), seconds=used,
        saved_attempt=parts.state.counters.attempted, notices=notices, env=env,
    )  # fmt: skip
    for rejected in newest.rejected:
        session.remark("fallback", checkpoint=rejected.path.name, why=rejected.reason)
    if cut:
        session.remark("trajectory cut", lines=cut, lost_seconds=used - saved)
    place.write_config(meta["run_id"], parts.config)
    return session


def _model_facts(architecture: Mapping[str, str]) -> dict[str, Any]:
    """The model's version: names, shapes and dtypes of its tensors as one digest."""
    text = json.dumps(architecture, sort_keys=True).encode()
    return {"tensors": len(architecture), "architecture_sha256": hashlib.sha256(text).hexdigest()}


def _seconds_used(place: RunFolder, newest: Found, earlier: Sequence[Attempt]) -> float:
    """Seconds at work, what a kill lost included: the largest that checkpoint, signals and ended attempts know of."""
    signals = last_record(place.signals) or {}
    ends = [attempt.end.get("measured", {}).get("seconds_used", 0.0) for attempt in earlier]
    return max(float(s) for s in (newest.manifest["facts"]["seconds_used"], signals.get("seconds", 0.0), *ends))


def _open(
    place: RunFolder, parts: Parts, store: Any, held: ExitStack, *, words: Mapping[str, str],
    present: Mapping[str, Any], run_id: str, parent: Any, overrides: Mapping[str, Any], exact: bool,
    segment: int, seconds: float, saved_attempt: int | None,
    notices: list[str], env: Mapping[str, Any],
) -> Session:  # fmt: skip
    attempts = AttemptLog(place.path)
    attempts.begin(
        name=place.name, config=parts.config.to_dict(), recipe=parts.config.recipe, **words,
        data=present["data"], model=_model_facts(present["architecture"]), code=env.get("git"),
        parent=parent, overrides=overrides, exact=exact,
    )  # fmt: skip
    facts = {"run_id": run_id, "identity": dict(present), "exact": exact, "started": time.time()}
    return Session(
        place, parts, store, attempts, held.pop_all(), facts, segment=segment, seconds_before=seconds,
        saved_attempt=saved_attempt, notices=notices,
    )  # fmt: skip


def _changed(config: RunConfig, settings: Mapping[str, Any], overrides: Collection[str]) -> RunConfig:
    """The stored config with the user's changes; only what may change, or is overridden by name."""
    fields: dict[str, Any] = {}
    for name, value in settings.items():
        if name in config.options:
            raise IdentityError(
                f"{name} is {config.options[name]!r} in this run, now {value!r} is asked for", "the same value",
                "start a new run in another folder",
            )  # fmt: skip
        if name not in field_names():
            raise unknown_name(name, {*field_names(), *config.options})
        fields[name] = parse(name, value) if isinstance(value, str) else value
    changed = config.changed(**fields)
    for name in fields:
        before, now = getattr(config, name), getattr(changed, name)
        if before != now and name not in MAY_CHANGE | ENVIRONMENT_FIELDS and name not in overrides:
            raise IdentityError(
                f"{name} is {before!r} in this run, now {now!r} is asked for", "the same value",
                "start a new run in another folder; only these may change: " + ", ".join(sorted(MAY_CHANGE)),
            )  # fmt: skip
    return changed


def _space_notice(store: Any, parts: Parts) -> list[str]:
    """What retention will hold at once, against what is free now."""
    config = parts.config
    milestones = (config.updates or 0) // config.milestone_every if config.milestone_every else 0
    space = store.space(parts.state.capture(), milestones)
    if not space.missing:
        return []
    return [f"what retention keeps will need {space.retained} bytes, {space.missing} more than are free"]


def _refuse_occupied(place: RunFolder) -> None:
    if place.exists():
        raise RunFolderError(f"{place.path} holds a run already", "a new folder", f"`labkit resume {place.path}`")
    if place.path.exists() and not place.path.is_dir():
        raise RunFolderError(f"{place.path} is a file", "a folder, or nothing", "choose another path")


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=False) + "\n"
