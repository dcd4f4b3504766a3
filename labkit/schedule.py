"""The learning rate as a function of one clock, with everything it remembers in plain values. Lessons 01 and 04.

A schedule multiplies the base rate of every parameter group by factor(clock). The clock counts what the config names:
committed updates, committed examples, finished epochs, or evaluations. A skipped attempt never advances it.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch

from labkit.config import RunConfig
from labkit.errors import ConfigError, StateError


class Schedule(Protocol):
    """What the loop needs of a schedule."""

    ends: int | None  # the clock's value at which its plan is over; None: never

    def advance(self, clock: int, metric: float | None = None) -> None:
        """Set the rates for the next update; clock is the clock's present value, metric that of an evaluation."""

    def state_dict(self) -> dict[str, Any]: ...

    def check_state(self, saved: dict[str, Any]) -> None:
        """Raise StateError when load_state_dict would fail; changes nothing."""

    def load_state_dict(self, saved: dict[str, Any]) -> None: ...


def build(config: RunConfig, optimizer: torch.optim.Optimizer, own: Any | None = None) -> Schedule:
    """The schedule that the config names, or a recipe's own torch scheduler in its place. Sets the first rates."""
    if own is not None:
        if config.schedule != "constant" or config.warmup:
            raise ConfigError(
                f"schedule={config.schedule}, warmup={config.warmup}, and the recipe brings a schedule of its own",
                "one schedule", "leave both settings out, or return None from the recipe's schedule()",
            )  # fmt: skip
        return TorchSchedule(own)
    if config.schedule == "plateau":
        return TorchSchedule(
            torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, mode=config.mode or "min", factor=config.schedule_factor, patience=config.schedule_interval
            ),
            wants_metric=True,
        )
    return FactorSchedule(optimizer, config)


class FactorSchedule:
    """Base rates times factor(clock); its whole state is the clock and the base rates."""

    def __init__(self, optimizer: torch.optim.Optimizer, config: RunConfig) -> None:
        self._optimizer, self._config = optimizer, config
        self.ends = config.horizon if config.schedule in {"linear", "cosine", "onecycle"} else None
        self.base_rates = [float(group["lr"]) for group in optimizer.param_groups]
        self.clock = 0
        self.advance(0)

    def advance(self, clock: int, metric: float | None = None) -> None:
        self.clock = clock
        now = factor(self._config, clock)
        for group, base in zip(self._optimizer.param_groups, self.base_rates, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(base * now)  # a capturable optimizer keeps its rate in a tensor
            else:
                group["lr"] = base * now

    def state_dict(self) -> dict[str, Any]:
        return {"clock": self.clock, "base_rates": list(self.base_rates)}

    def check_state(self, saved: dict[str, Any]) -> None:
        _check_names(saved, self.state_dict())
        if len(saved["base_rates"]) != len(self._optimizer.param_groups):
            raise StateError(
                f"the saved schedule has {len(saved['base_rates'])} rates",
                f"{len(self._optimizer.param_groups)}, one for each parameter group",
                "resume with the optimizer that the run was started with",
            )

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.check_state(saved)
        self.base_rates = [float(rate) for rate in saved["base_rates"]]
        self.advance(int(saved["clock"]))


class TorchSchedule:
    """A torch scheduler, advanced once for each tick of the clock, and not past the end of its own plan.

    OneCycleLR gives the rates of updates 1 to total_steps; one call more raises the rate again, the next one fails.
    """

    def __init__(self, scheduler: Any, wants_metric: bool = False) -> None:
        self._scheduler, self._wants_metric = scheduler, wants_metric
        self.ends: int | None = getattr(scheduler, "total_steps", None)
        self.clock = 0

    def advance(self, clock: int, metric: float | None = None) -> None:
        while self.clock < clock:
            self.clock += 1
            if self.ends is not None and self.clock >= self.ends:
                continue
            if self._wants_metric:
                self._scheduler.step(metric)
            else:
                self._scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        return {"clock": self.clock, "torch": dict(self._scheduler.state_dict())}

    def check_state(self, saved: dict[str, Any]) -> None:
        own = self.state_dict()
        _check_names(saved, own)
        _check_names(saved["torch"], own["torch"])

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.check_state(saved)
        self.clock = int(saved["clock"])
        self._scheduler.load_state_dict(saved["torch"])


def _check_names(saved: dict[str, Any], own: dict[str, Any]) -> None:
    if saved.keys() != own.keys():
        raise StateError(
            f"the saved schedule holds {sorted(saved)}", f"{sorted(own)}",
            "resume with the schedule that the run was started with",
        )  # fmt: skip


def factor(config: RunConfig, clock: int) -> float:
    """The factor of the base rate for the update that follows when the clock shows this value.

    Warm-up: (clock + 1) / warmup, so that the first update moves and update number `warmup` is the first at full rate.
    After the horizon the floor is held. Linear and cosine fall from 1 to the floor between warm-up and horizon; the
    one-cycle shape rises from 1/25 over the first 30% and falls to the floor (Smith and Topin 2018, arXiv 1708.07120).
    """
    if clock < config.warmup:
        return (clock + 1) / config.warmup
    if config.schedule == "constant" or config.schedule == "plateau":
        return 1.0
    if config.schedule == "step":
        return config.schedule_factor ** (clock // config.schedule_interval)
    assert config.horizon is not None  # checked by RunConfig
    done = min((clock - config.warmup) / (config.horizon - config.warmup), 1.0)
    if config.schedule == "linear":
        return 1.0 + (config.floor - 1.0) * done
    if config.schedule == "cosine":
        return _cosine(1.0, config.floor, done)
    return _cosine(1 / 25, 1.0, done / 0.3) if done < 0.3 else _cosine(1.0, config.floor, (done - 0.3) / 0.7)


def _cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * done)) / 2


def check_target(config: RunConfig, schedule: Schedule) -> None:
    """Refuse a target beyond the planned end of the schedule, unless the config says to hold the last rate."""
    goal = config.updates if config.schedule_clock == "updates" else None
    if goal is not None and schedule.ends is not None and goal > schedule.ends and config.after_horizon == "refuse":
        raise ConfigError(
            f"the schedule was planned for {schedule.ends} updates, the target is {goal}",
            "a plan for the rest",
            "set after_horizon=hold to go on at the last rate, or start a new run with a longer horizon",
        )
