"""Scoring a model without leaving a trace, and deciding what the score means. Lessons 02 and 09.

Every metric is a sum and a count over the whole split; the division comes last. Afterwards modules are in the mode they
were in, buffers hold the bits they held, and no random stream has moved: evaluating changes nothing in training.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from labkit import randomness
from labkit.config import RunConfig
from labkit.device import to_device
from labkit.ema import recompute_batchnorm
from labkit.errors import ConfigError, RecipeError
from labkit.loading import fetch
from labkit.recipe import Recipe
from labkit.state import Best, RunState, kept_buffers, put_back
from labkit.weighting import Total

RECOMPUTE_EXAMPLES = 1024
"""BatchNorm statistics of an average are recomputed on the first so many training examples, untransformed, in order."""


def evaluate(
    model: nn.Module,
    recipe: Recipe,
    dataset: Any,
    *,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Total] | None:
    """Totals of every metric of the recipe over a split, in index order.

    The model is put in eval mode and back, module by module. Returns None if should_stop() said so between two
    batches: a part of a split is no evaluation. Raises RecipeError when a metric's count is missing or negative.
    """
    totals: dict[str, Total] = {}
    with leaving_no_trace(model), torch.no_grad():
        for batch in batches(dataset, recipe.collate, batch_size):
            if should_stop():
                return None
            with autocast():
                found = recipe.metrics(model, to_device(batch, device))
            check_counts(found)
            for name, (summed, count) in found.items():
                totals[name] = totals.get(name, Total.zero()) + Total(float(summed), count)
    return totals


def check_counts(found: Mapping[str, tuple[Any, int]]) -> None:
    """Raise RecipeError for a metric whose count is no whole number of at least 0."""
    for name, (_, count) in found.items():
        if not isinstance(count, int) or count < 0:
            raise RecipeError(
                f"metric {name!r} came with the count {count!r}", "a whole number, 0 or more", "return (sum, count)"
            )


def batches(dataset: Any, collate: Callable[[Any], Any], batch_size: int, stop: int | None = None) -> Iterator[Any]:
    """Collated batches in index order, the last one short; stop: use the first so many examples only."""
    length = len(dataset) if stop is None else min(stop, len(dataset))
    for start in range(0, length, batch_size):
        yield fetch(dataset, collate, np.arange(start, min(start + batch_size, length)))


@contextmanager
def leaving_no_trace(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; modes per module, buffers and global random streams come back, also after an exception."""
    modes = {module: module.training for module in model.modules()}
    buffers = kept_buffers(model)
    devices = tuple({parameter.device for parameter in model.parameters()})
    with randomness.preserved(devices=devices):
        try:
            model.eval()
            yield
        finally:
            for module, training in modes.items():
                module.training = training
            put_back(buffers)


def evaluate_state(
    state: RunState,
    recipe: Recipe,
    config: RunConfig,
    train: Any,
    validation: Any,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Total] | None:
    """Evaluate the run's raw or averaged weights, as the config says. None when told to stop in between."""
    with nothing_moved(state), carrying_average(state, recipe, config, train):
        return evaluate(
            state.model, recipe, validation, batch_size=config.eval_batch_size, device=config.device,
            autocast=state.precision.autocast, should_stop=should_stop,
        )  # fmt: skip


@contextmanager
def nothing_moved(state: RunState) -> Iterator[None]:
    """All random streams, registered ones too, and the recipe's stateful objects come back, also after an exception."""
    before = {name: copy.deepcopy(thing.state_dict()) for name, thing in state.stateful.items()}
    with randomness.preserved(state.generators, state.devices):
        try:
            yield
        finally:
            for name, thing in state.stateful.items():
                thing.load_state_dict(before[name])


@contextmanager
def carrying_average(state: RunState, recipe: Recipe, config: RunConfig, train: Any) -> Iterator[None]:
    """The model carries the weights that the config evaluates: its own, or the average with its buffer policy."""
    if config.eval_weights == "raw" or state.ema is None:
        yield
        return
    with state.ema.lent_to(state.model):
        if config.ema_buffers == "recompute":
            inputs = batches(train, recipe.collate, config.eval_batch_size, stop=RECOMPUTE_EXAMPLES)
            on_device = (to_device(batch, config.device) for batch in inputs)
            with randomness.preserved(devices=state.devices), torch.no_grad():
                recompute_batchnorm(state.model, on_device, lambda model, batch: recipe.objective(model, batch))
        yield


def decide(best: Best, config: RunConfig, totals: Mapping[str, Total], update: int) -> bool:
    """Record an evaluation in best; True when it is the best so far. A nonfinite value never is, and costs patience.

    Raises ConfigError when the metric that the config names was not measured.
    """
    value = metric_value(config, totals)
    if math.isfinite(value) and _improves(best.value, value, config):
        best.value, best.update, best.without_improvement = value, update, 0
        return True
    best.without_improvement += 1
    return False


def metric_value(config: RunConfig, totals: Mapping[str, Total]) -> float:
    """The mean of the metric that decides; nan when its count is 0."""
    if config.metric not in totals:
        raise ConfigError(f"metric={config.metric!r} is not measured", "one of " + ", ".join(totals), "choose one")
    total = totals[config.metric]
    return total.mean if total.count else math.nan


def _improves(best: float | None, value: float, config: RunConfig) -> bool:
    if best is None:
        return True
    gain = best - value if config.mode == "min" else value - best
    return gain > config.min_improvement


def out_of_patience(best: Best, config: RunConfig) -> bool:
    """Derived from saved counters at each boundary, so a resumed run decides as the straight one."""
    return config.patience is not None and best.without_improvement >= config.patience
