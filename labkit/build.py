"""From a recipe and a config to live objects, in the order that a resume needs, and the checks before training.

Order: data, model (under a key of its own), optimizer, schedule (it writes the first rates), average, precision. The
random streams come last, when nothing that draws is left to be built. Lesson 04.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from labkit import device as devices
from labkit import randomness, schedule
from labkit.config import RunConfig
from labkit.device import to_device
from labkit.ema import Ema
from labkit.errors import ConfigError, DataError, PrecisionError, RandomnessError, RecipeError
from labkit.evaluate import check_counts, leaving_no_trace, nothing_moved
from labkit.loading import Feed, draws_from_global, fetch
from labkit.norms import first_nonfinite
from labkit.order import EpochOrder
from labkit.precision import NumericPolicy, Precision
from labkit.precision import apply as apply_policy
from labkit.recipe import Recipe, Splits
from labkit.state import RunState, capture_optimizer, leaf_bytes, leaves
from labkit.weighting import check_additive


@dataclass(frozen=True)
class Parts:
    """What a run works with. Only `state` changes while it trains."""

    recipe: Recipe
    config: RunConfig
    splits: Splits
    order: EpochOrder
    state: RunState


def apply_numerics(config: RunConfig) -> dict[str, Any]:
    """Set what the config says about arithmetic, for this whole process; what torch then says. Raises ConfigError."""
    try:
        policy = NumericPolicy(config.tf32, config.matmul, config.deterministic, config.cudnn_benchmark)
    except PrecisionError as error:
        raise ConfigError(error.found, error.expected, error.do) from error
    return apply_policy(policy, config.threads)


def build(recipe: Recipe, config: RunConfig) -> Parts:
    """New live objects for a config. Leaves the global random streams at the start of the run's own streams.

    Raises DataError, RecipeError, ConfigError or a relative when the recipe does not keep its contract.
    """
    device = devices.resolve(config.device)
    splits = recipe.splits(config)
    _check_splits(splits, config)
    randomness.seed_all("build", config.seed)
    model = recipe.model(config).to(device)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise RecipeError("the model has no trainable parameters", "at least one", "check the recipe's model()")
    optimizer = recipe.optimizer(config, model)
    generators = dict(recipe.generators())
    randomness.check_generators(generators)
    state = RunState(
        model=model,
        optimizer=optimizer,
        schedule=schedule.build(config, optimizer, recipe.schedule(config, optimizer)),
        precision=Precision(config.precision, device, config.initial_scale, config.growth_interval),
        ema=None if config.ema_decay is None else Ema(model, config.ema_decay, config.ema_warmup, config.ema_buffers),
        generators=generators,
        stateful=dict(recipe.stateful()),
        devices=(device,) if device.type == "cuda" else (),
    )
    capture_optimizer(model, optimizer)  # every parameter has a name, or it is refused here
    randomness.seed_all("train", config.seed)
    return Parts(recipe, config, splits, EpochOrder(config.order, config.seed, len(splits.train)), state)


def build_feed(parts: Parts, config: RunConfig) -> Feed:
    """The feed of training batches; who fetches them (workers) is the config's affair, which ones is not."""
    return Feed(
        parts.splits.train, parts.recipe.collate, parts.splits.transform, parts.order,
        batch_size=config.batch_size, microbatch_size=config.microbatch_size, seed=config.seed,
        workers=config.workers, start_method=config.start_method, persistent_workers=config.persistent_workers,
        prefetch=config.prefetch, shield_global=config.shield_global,
    )  # fmt: skip


def _check_splits(splits: Splits, config: RunConfig) -> None:
    if len(splits.train) < 1:
        raise DataError("the training split is empty", "at least one example", "check the recipe's splits()")
    needs = bool(config.eval_every)
    if needs and (splits.validation is None or len(splits.validation) < 1):
        raise DataError("eval_every is set but there is no validation split", "at least one example", "")


def preflight(parts: Parts) -> list[str]:
    """Try the recipe's functions and the feed once, leaving no trace; returns notices for the user.

    Raises RecipeError, WeightingError, RandomnessError or ConfigError where a contract is broken.
    """
    state, recipe, splits, config = parts.state, parts.recipe, parts.splits, parts.config
    notices: list[str] = []
    schedule.check_target(config, state.schedule)
    bad = first_nonfinite(state.model.named_parameters())
    if bad is not None:
        raise RecipeError(f"the parameter {bad} of a new model is not finite", "finite weights", "check model()")
    build_feed(parts, config)  # what workers would stumble over is said here, and none is started
    with nothing_moved(state), leaving_no_trace(state.model):
        _check_global_draws(parts)

        def batch(*indices: int) -> Any:
            return to_device(fetch(splits.train, recipe.collate, np.array(indices)), config.device)

        def objective(one: Any) -> tuple[torch.Tensor, int]:
            with state.precision.autocast():
                return recipe.objective(state.model, one)

        first = batch(0)
        counted = recipe.count(first)
        if not isinstance(counted, int):
            raise RecipeError(f"count() returned a {type(counted).__name__}", "an int", "for example int(mask.sum())")
        if not _repeatable(lambda: batch(*range(min(4, len(splits.train))))):
            notices.append(
                "the data set gives another example for the same index each time, so no resume can be exact: "
                "draw in transform(example, rng) instead"
            )
        elif len(splits.train) >= 4:
            check_additive(objective, batch(0, 1), batch(2, 3), batch(0, 1, 2, 3))
        if splits.validation is not None and len(splits.validation):
            notices += _check_metrics(parts)
    if recipe.fingerprint(config) is None:
        notices.append("data unverified: the recipe gives no fingerprint, so changed data would not be noticed")
    if config.shield_global:
        notices.append("shield_global is on: exact, but slow; a transform that uses its rng argument needs no shield")
    return notices


def _repeatable(make: Callable[[], Any]) -> bool:
    """Whether a batch made twice has the same tensors, arrays, numbers and texts; other objects are not judged."""
    for (_, one), (_, other) in zip(leaves(make()), leaves(make()), strict=False):
        if isinstance(one, np.ndarray):
            one, other = torch.from_numpy(one), torch.from_numpy(other)
        if isinstance(one, torch.Tensor | int | float | str) and leaf_bytes(one) != leaf_bytes(other):
            return False
    return True


def _check_global_draws(parts: Parts) -> None:
    drawn = draws_from_global(parts.splits.train, parts.splits.transform, parts.recipe.collate, 0)
    if drawn and not parts.config.shield_global:
        raise RandomnessError(
            f"the data set, transform or collate draws from the global stream of {' and '.join(drawn)}",
            "transform(example, rng) drawing from its rng, which is keyed by (seed, epoch, example)",
            "draw from rng, or set shield_global=true, which keys the global streams around each example (slow)",
        )


def _check_metrics(parts: Parts) -> list[str]:
    recipe, config, state = parts.recipe, parts.config, parts.state
    stop = min(len(parts.splits.validation), config.eval_batch_size)
    batch = to_device(fetch(parts.splits.validation, recipe.collate, np.arange(stop)), config.device)

    def measure() -> dict[str, float]:
        with torch.no_grad(), state.precision.autocast():
            found = recipe.metrics(state.model, batch)
        check_counts(found)
        return {name: float(summed) for name, (summed, _) in found.items()}

    first, second = measure(), measure()
    if config.eval_every and config.metric not in first:
        raise ConfigError(f"metric={config.metric!r} is not measured", "one of " + ", ".join(first), "choose one")
    differing = [name for name in first if repr(first[name]) != repr(second[name])]
    if differing:
        return [f"evaluating the same weights twice gave two values of {differing[0]}: eval mode is random"]
    return []
