"""Where a run ends: at its target, out of patience, or because it was told to. Lesson 11."""

from __future__ import annotations

from typing import NamedTuple

from labkit.config import GOALS, RunConfig
from labkit.errors import ConfigError
from labkit.evaluate import out_of_patience
from labkit.state import RunState


class Ending(NamedTuple):
    """How a run ends at a boundary. status: "finished", "early stopped" or "stopped"; reason in words."""

    status: str
    reason: str


def check_target(config: RunConfig) -> None:
    """Raise ConfigError when nothing says where the run ends."""
    if all(getattr(config, name) is None for name in GOALS):
        raise ConfigError("nothing says where the run ends", "one of " + ", ".join(GOALS), "for example updates=200")


def find_ending(state: RunState, config: RunConfig, seconds_used: float, stop: str | None) -> Ending | None:
    """The ending at this boundary, from saved counters alone but for the seconds; None: the run goes on."""
    counters = state.counters
    if out_of_patience(state.best, config):
        return Ending("early stopped", f"{state.best.without_improvement} evaluations without improvement")
    reached = (counters.committed, state.cursor.epoch, counters.examples, counters.tokens, seconds_used)
    for name, value in zip(GOALS, reached, strict=True):
        goal = getattr(config, name)
        if goal is not None and value >= goal:
            return Ending("finished", f"target reached: {name}={goal:g}")
    return None if stop is None else Ending("stopped", stop)
