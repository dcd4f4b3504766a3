"""The one table of stops that every resume test uses, and what stops and continues there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit import randomness, run
from labkit.engine import open_engine
from labkit.proof import Difference, first_difference
from labkit.recipe import Recipe, resolve
from labkit.records.lines import read_lines
from labkit.state import Saved, digests

EPOCH = 6  # updates in an epoch of toys.Toy
UPDATES = 15  # two epochs and a half

STOPS: dict[str, tuple[int, ...]] = {
    "at 0": (0,),
    "at 1": (1,),
    "in the middle of an epoch": (3,),
    "at the last of an epoch": (EPOCH,),
    "at the first of the next": (EPOCH + 1,),
    "at the last but one": (UPDATES - 1,),
    "at the target": (UPDATES,),
    "twice in one epoch": (EPOCH + 2, EPOCH + 4),
    "three times in one epoch": (1, 3, 5),
}
"""Committed updates at which a run is stopped and continued by other objects, from other global streams."""

Make = Callable[[], Recipe]


def straight(make: Make, updates: int = UPDATES, **settings: Any) -> tuple[Saved, list[dict[str, Any]]]:
    """The unbroken run in memory: its final state, and its records with digests of every part at each boundary."""
    recipe = make()
    with open_engine(recipe, resolve(recipe, "object:toy", {"updates": updates, **settings})) as engine:
        records: list[Any] = []
        engine.run(updates, records.append)
        return engine.capture(), records


def split(folder: Path, make: Make, *stops: int, **settings: Any) -> Saved:
    """The run stopped at every boundary but the last of `stops`, its target; the final state."""
    final: Saved = {}
    for part, updates in enumerate(stops):
        randomness.seed_all("somebody else's", part)
        if part == 0:
            session = run.start(make(), folder, updates=updates, **settings)
        else:
            session = run.resume(folder, recipe=make(), updates=updates)
        with session:
            session.train()
            final = session.capture()
    return final


def differing(left: Saved, right: Saved) -> list[str]:
    """The parts of two states that are not equal in every bit."""
    one, other = digests(left), digests(right)
    return [part for part in one | other if one.get(part) != other.get(part)]


def first_recorded(left: Path, right: Path) -> Difference | None:
    """The first recorded quantity in which two run folders differ."""
    return first_difference(*(read_lines(folder / "trajectory.jsonl").records for folder in (left, right)))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, the lock and its note aside."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith("lock"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
