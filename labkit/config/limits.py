"""Values that a setting may take, and settings that do not go together: refused before anything is built. Lesson 04."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING

from labkit.errors import ConfigError

if TYPE_CHECKING:
    from labkit.config.run_config import RunConfig

_AT_LEAST: dict[str, float] = {
    "threads": 1, "growth_interval": 1, "batch_size": 1, "workers": 0, "prefetch": 1, "rate": 0, "weight_decay": 0,
    "warmup": 0, "horizon": 1, "floor": 0, "schedule_interval": 1, "max_skips": 0, "max_scaler_skips": 0,
    "eval_every": 0, "eval_batch_size": 1, "patience": 1, "min_improvement": 0, "samples_every": 0, "norm_every": 0,
    "signals_every": 0, "monitor_every": 0, "histograms_every": 0, "save_every": 0, "keep": 2, "milestone_every": 1,
    "updates": 0, "epochs": 0, "examples": 0, "tokens": 0,
}  # fmt: skip
_ABOVE: dict[str, float] = {
    "initial_scale": 0, "max_norm": 0, "schedule_factor": 0, "save_seconds": 0, "seconds": 0,
}  # fmt: skip


def check(config: RunConfig) -> None:
    """Raise ConfigError for the first value out of its range, or the first two settings that contradict each other."""
    for item in fields(config):
        value = getattr(config, item.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{item.name}={value}", "a finite number", f"correct {item.name}, or leave it out")
    for name, least in _AT_LEAST.items():
        value = getattr(config, name)
        if value is not None and not value >= least:
            why = " (with only one, a crash while it is replaced would leave none)" if name == "keep" else ""
            raise ConfigError(f"{name}={value}", f"{least:g} or more{why}", f"set {name} to {least:g} or more")
    for name, bound in _ABOVE.items():
        value = getattr(config, name)
        if value is not None and not value > bound:
            raise ConfigError(f"{name}={value}", f"a number above {bound:g}", f"set {name} higher, or leave it out")
    for size in config.microbatch_size:
        if size < 1:
            raise ConfigError(f"microbatch_size holds {size}", "1 or more each", "for example microbatch_size=16")
    if config.ema_decay is not None and not 0 <= config.ema_decay < 1:
        raise ConfigError(f"ema_decay={config.ema_decay}", "at least 0 and below 1", "for example ema_decay=0.99")
    if config.schedule in {"linear", "cosine", "onecycle"}:
        _check_horizon(config)
    _check_clock(config)
    _check_evaluation(config)
    if len(config.microbatch_size) > 1 and sum(config.microbatch_size) > config.batch_size:
        raise ConfigError(
            f"microbatch_size={list(config.microbatch_size)} adds up to {sum(config.microbatch_size)}",
            f"at most batch_size={config.batch_size}",
            "use smaller pieces",
        )


def _check_horizon(config: RunConfig) -> None:
    """A schedule that ends says where, after its warm-up, and the run does not outlast it unnoticed."""
    if config.horizon is None:
        raise ConfigError(
            f"schedule={config.schedule} without a horizon",
            f"its length in {config.schedule_clock}, a setting of its own so that a longer run never bends it",
            f"for example horizon={config.updates or 1000}",
        )
    if config.warmup >= config.horizon:
        raise ConfigError(
            f"warmup={config.warmup}, horizon={config.horizon}",
            "a warm-up shorter than the horizon",
            "shorten the warm-up, or plan for longer",
        )
    goal = {"updates": config.updates, "examples": config.examples, "epochs": config.epochs}.get(config.schedule_clock)
    if goal is not None and goal > config.horizon and config.after_horizon == "refuse":
        raise ConfigError(
            f"the schedule ends after {config.horizon} {config.schedule_clock}, the target is {goal}",
            "a plan for the rest",
            "set a longer horizon in a new run, or after_horizon=hold to go on at the last rate",
        )


def _check_clock(config: RunConfig) -> None:
    if config.schedule == "plateau" and (config.schedule_clock != "validation" or not config.eval_every):
        raise ConfigError(
            f"schedule=plateau with schedule_clock={config.schedule_clock}, eval_every={config.eval_every}",
            "the validation clock and evaluations",
            "set schedule_clock=validation and eval_every",
        )
    if config.schedule == "plateau" and config.warmup:
        raise ConfigError(f"schedule=plateau with warmup={config.warmup}", "no warm-up", "leave warmup out")
    if config.schedule_clock == "validation" and not config.eval_every:
        raise ConfigError("schedule_clock=validation without evaluations", "eval_every above 0", "set eval_every")


def _check_evaluation(config: RunConfig) -> None:
    if config.eval_every and config.mode is None:
        raise ConfigError(
            f"metric={config.metric} without a direction", "mode=min or mode=max, never guessed", "set mode"
        )
    if config.eval_weights == "ema" and config.ema_decay is None:
        raise ConfigError("eval_weights=ema without an average", "a value for ema_decay", "for example ema_decay=0.99")
    if config.patience is not None and not config.eval_every:
        raise ConfigError("patience without evaluations", "eval_every above 0", "set eval_every")
