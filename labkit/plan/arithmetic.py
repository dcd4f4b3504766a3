"""Counting updates before they are made: epochs, examples, tokens and seconds as updates. Lesson 08.

updates = epochs x ceil(examples / batch): an epoch's short last batch is an update too.
"""

from __future__ import annotations

import math

from labkit.config import RunConfig
from labkit.errors import PlanError


def check_numbers(**numbers: float | None) -> None:
    """Raise PlanError for a number that is negative or not finite. None is "not given"."""
    for name, value in numbers.items():
        if value is not None and not 0 <= value < math.inf:
            raise PlanError(f"{name}={value}", "a finite number, not negative", f"correct {name}")


def updates_per_epoch(examples: int, batch_size: int) -> int:
    """ceil(examples / batch)."""
    return -(-examples // batch_size)


def examples_in(updates: int, examples: int, batch_size: int) -> int:
    """Examples that so many updates consume, from the start of an epoch on."""
    epochs, rest = divmod(updates, updates_per_epoch(examples, batch_size))
    return epochs * examples + min(rest * batch_size, examples)


def updates_for(wanted: int, examples: int, batch_size: int) -> int:
    """Updates until so many examples are consumed: a run ends at the first boundary that has reached them."""
    epochs, rest = divmod(wanted, examples)
    return epochs * updates_per_epoch(examples, batch_size) + updates_per_epoch(rest, batch_size)


def planned_updates(
    config: RunConfig, length: int, tokens_per_update: float = 0.0, seconds_per_update: float = 0.0
) -> int:
    """Updates to the target: of the goals given, the one that is reached first. See ending()."""
    return ending(config, length, tokens_per_update, seconds_per_update)[0]


def ending(
    config: RunConfig, length: int, tokens_per_update: float = 0.0, seconds_per_update: float = 0.0
) -> tuple[int, str]:
    """Updates to the target, and the name of the goal that ends the run: of those given, what is reached first.

    length: examples of the training split. tokens and seconds become updates by what was measured.
    Raises PlanError when there is no goal, or one of no update at all.
    """
    goals: dict[str, int] = {}
    if config.updates is not None:
        goals["updates"] = config.updates
    if config.epochs is not None:
        goals["epochs"] = config.epochs * updates_per_epoch(length, config.batch_size)
    if config.examples is not None:
        goals["examples"] = updates_for(config.examples, length, config.batch_size)
    if config.tokens is not None and tokens_per_update > 0:
        goals["tokens"] = math.ceil(config.tokens / tokens_per_update - 1e-9)
    if config.seconds is not None and seconds_per_update > 0:
        goals["seconds"] = max(1, math.ceil(config.seconds / seconds_per_update))
    if not goals or min(goals.values()) < 1:
        raise PlanError("there is nothing to plan", "a target of one update or more", "give --updates or --epochs")
    ends_by = min(goals, key=goals.__getitem__)
    return goals[ends_by], ends_by


def saves_in(updates: int, save_every: int) -> int:
    """Checkpoints that are planned: at the start, every so many updates (0: never), and at the end."""
    if not save_every:
        return 2
    return 1 + updates // save_every + (1 if updates % save_every else 0)
