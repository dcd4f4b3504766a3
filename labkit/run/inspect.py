"""Looking at a run without continuing it: check its checkpoints, run to a refused attempt again. Lessons 05 and 07."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit import identity, randomness
from labkit.build import apply_numerics, build
from labkit.checkpoint import CheckpointStore
from labkit.checkpoint import verify as verify_one
from labkit.engine import Engine
from labkit.errors import CheckpointError, NonfiniteError, RecordsError
from labkit.loop import Attempt
from labkit.recipe import Recipe
from labkit.recipes import find
from labkit.records.lines import read_lines
from labkit.run.folder import RunFolder


@dataclass(frozen=True)
class Checked:
    """One checkpoint folder; reason is None when every byte is as the manifest says and loads under restriction."""

    path: Path
    reason: str | None


def verify(path: Path | str) -> list[Checked]:
    """Read a checkpoint folder, or all of a run folder, completely. Raises CheckpointError when none is there."""
    place = Path(path)
    folders = [place]
    if (place / "checkpoints").is_dir():
        folders = [entry.path for entry in CheckpointStore(place / "checkpoints").list()]
    elif not place.is_dir():
        raise CheckpointError(f"there is no folder {place}", "a checkpoint folder or a run folder", "check the path")
    if not folders:
        raise CheckpointError(f"{place} holds no checkpoint", "at least one", "see `labkit ledger` for its attempts")
    rejected = [(folder, verify_one(folder)) for folder in folders]
    return [Checked(folder, bad.reason if bad else None) for folder, bad in rejected]


@dataclass(frozen=True)
class Replay:
    """An attempt run again from the checkpoint before it. reproduced: the guard refused it again."""

    attempt: int
    from_update: int
    reproduced: bool
    why: str | None
    record: dict[str, Any] | None  # of the last attempt that was not refused

    def __str__(self) -> str:
        what = f"refused again: {self.why}" if self.reproduced else "it passed this time"
        return f"attempt {self.attempt}, replayed from update {self.from_update}: {what}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def replay(folder: Path | str, attempt: int | None = None, *, recipe: Recipe | None = None) -> Replay:
    """Go from the last checkpoint before an attempt to that attempt, in memory; the run folder is only read.

    attempt: default the last one in incidents.jsonl. Exactness makes this legal: it is the same attempt.
    Raises RecordsError when there is no incident, CheckpointError when no checkpoint lies before it, IdentityError when
    config, architecture or data are no longer those of the run.
    """
    place = RunFolder(Path(folder))
    config, meta = place.read_config(), place.read_meta()
    if attempt is None:
        incidents = read_lines(place.incidents).records if place.incidents.exists() else []
        if not incidents:
            raise RecordsError(f"{place.name} records no incident", "a refused attempt", "name an attempt to run to")
        attempt = int(incidents[-1]["attempt"])
    store = place.store(config, meta["run_id"])
    found = store.newest(usable=lambda manifest: _too_late(manifest, attempt))
    callers = randomness.capture()
    try:
        apply_numerics(config)
        parts = build(recipe or find(config.recipe), config)
        present = identity.identity(config, parts.state.model, parts.recipe, parts.splits)
        identity.check(found.manifest["facts"]["identity"], present)
        parts.state.restore(found.payload)
        with Engine(parts) as engine:
            record, why = _run_to(engine, attempt)
    finally:
        randomness.restore({**callers, "generators": {}})
    return Replay(attempt, found.update, why is not None, why, asdict(record) if record else None)


def _too_late(manifest: dict[str, Any], attempt: int) -> str | None:
    return None if manifest["facts"]["counters"]["attempted"] < attempt else "taken after the attempt"


def _run_to(engine: Engine, attempt: int) -> tuple[Attempt | None, str | None]:
    record = None
    with engine.working():
        engine.evaluate_if_due()
        while engine.state.counters.attempted < attempt:
            try:
                record = engine.update()
            except NonfiniteError as error:
                return record, error.found
            engine.evaluate_if_due()
    return record, record.skipped if record else None
