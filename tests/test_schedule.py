"""Rates: a function of one clock, used and next told apart, never moved by a skipped attempt or past the plan."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from toys import Toy

from labkit import schedule
from labkit.config import RunConfig
from labkit.engine import open_engine
from labkit.errors import ConfigError, StateError
from labkit.recipe import resolve
from labkit.schedule import FactorSchedule, TorchSchedule, factor


def of(**settings: Any) -> RunConfig:
    return RunConfig(recipe="d", **settings)


def optimizer(rate: float = 1.0) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)


def test_the_factors_are_those_of_the_formulas() -> None:
    linear = of(schedule="linear", warmup=4, horizon=14, floor=0.2)
    assert [factor(linear, clock) for clock in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert factor(linear, 9) == pytest.approx(1 + (0.2 - 1) * 0.5)
    assert factor(linear, 14) == factor(linear, 99) == pytest.approx(0.2)
    cosine = of(schedule="cosine", horizon=10)
    assert [factor(cosine, clock) for clock in (0, 5, 10)] == pytest.approx([1, 0.5, 0])
    cycle = of(schedule="onecycle", horizon=10)
    assert [factor(cycle, clock) for clock in (0, 3, 10)] == pytest.approx([1 / 25, 1, 0])
    step = of(schedule="step", schedule_interval=3, schedule_factor=0.5)
    assert [factor(step, clock) for clock in range(7)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]
    assert factor(of(), 1000) == 1


def test_every_group_keeps_its_own_base_rate() -> None:
    one, two = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    groups = torch.optim.SGD([{"params": [one], "lr": 1.0}, {"params": [two], "lr": 0.1}])
    plan = FactorSchedule(groups, of(schedule="linear", horizon=4))
    plan.advance(2)
    assert [group["lr"] for group in groups.param_groups] == [0.5, 0.05]


def test_a_rate_kept_in_a_tensor_is_changed_in_place() -> None:
    rate = torch.tensor(1.0)
    own = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=rate, capturable=False, foreach=False)
    FactorSchedule(own, of(schedule="linear", horizon=4)).advance(2)
    assert own.param_groups[0]["lr"] is rate and float(rate) == 0.5


def test_saved_base_rates_win_over_those_of_the_constructor() -> None:
    first, second = optimizer(1.0), optimizer(7.0)
    plan = FactorSchedule(first, of(schedule="linear", horizon=4))
    plan.advance(1)
    other = FactorSchedule(second, of(schedule="linear", horizon=4))
    other.load_state_dict(plan.state_dict())
    assert second.param_groups[0]["lr"] == first.param_groups[0]["lr"] == 0.75
    with pytest.raises(StateError, match="2 rates"):
        other.load_state_dict({"clock": 1, "base_rates": [1.0, 2.0]})


def rates(recipe: Any = None, updates: int = 12, **settings: Any) -> tuple[list[float], list[float], Any]:
    """(used, next, engine's counters) of every attempt."""
    recipe = recipe or Toy()
    with open_engine(recipe, resolve(recipe, "toy", {"updates": updates, "rate": 1.0, **settings})) as engine:
        records: list[Any] = []
        engine.run(updates, records.append)
        return [r.rates_used[0] for r in records], [r.rates_next[0] for r in records], engine.state


def test_the_next_rate_of_an_attempt_is_the_used_rate_of_the_following_one() -> None:
    used, following, _ = rates(schedule="cosine", horizon=12, warmup=3)
    assert used[1:] == following[:-1] and used[0] == 1 / 3


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"schedule_clock": "updates"}, [0.5 ** (k // 2) for k in range(12)]),
        ({"schedule_clock": "examples", "schedule_interval": 6}, [0.5 ** (2 * k // 6) for k in range(12)]),
        ({"schedule_clock": "epochs", "schedule_interval": 1}, [1.0] * 6 + [0.5] * 6),
        ({"schedule_clock": "validation", "schedule_interval": 1, "eval_every": 4}, [1.0] * 4 + [0.5] * 4 + [0.25] * 4),
    ],
)
def test_each_clock_counts_what_its_name_says(settings: dict[str, Any], expected: list[float]) -> None:
    used, _, _ = rates(**{"schedule": "step", "schedule_factor": 0.5, "schedule_interval": 2, **settings})
    assert used == expected


def test_microbatches_do_not_advance_a_schedule() -> None:
    plain, _, _ = rates(schedule="linear", horizon=12)
    cut, _, _ = rates(schedule="linear", horizon=12, microbatch_size=(1,))
    assert plain == cut and len(set(plain)) == 12


class Own(Toy):
    """A recipe with a torch scheduler of its own."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def schedule(self, config: RunConfig, optimizer: torch.optim.Optimizer) -> Any:
        return self.make(optimizer)


def test_a_torch_scheduler_gives_the_rates_it_gives_in_a_plain_loop() -> None:
    def make(own: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(own, 1.0, total_steps=12)

    used, following, _ = rates(Own(make))
    by_hand = optimizer()
    plan = make(by_hand)
    expected = []
    for _ in range(12):
        expected.append(by_hand.param_groups[0]["lr"])
        if len(expected) < 12:
            by_hand.step()
            plan.step()
    assert used == expected
    assert following[-1] == used[-1] < 1e-4  # one call more would raise it again


def test_a_recipes_plan_is_not_overrun() -> None:
    recipe = Own(lambda own: torch.optim.lr_scheduler.OneCycleLR(own, 1.0, total_steps=6))
    with open_engine(recipe, resolve(recipe, "toy", {"updates": 9})) as engine:
        with pytest.raises(ConfigError, match="planned for 6 updates, the target is 9"):
            schedule.check_target(engine.config, engine.state.schedule)
        schedule.check_target(engine.config.changed(after_horizon="hold"), engine.state.schedule)
        engine.run(9)
        assert engine.state.optimizer.param_groups[0]["lr"] < 1e-4


@pytest.mark.parametrize("settings", [{"schedule": "cosine", "horizon": 50}, {"warmup": 3}])
def test_two_schedules_at_once_are_refused(settings: dict[str, Any]) -> None:
    recipe = Own(lambda own: torch.optim.lr_scheduler.ConstantLR(own))
    with pytest.raises(ConfigError, match="of its own"):
        open_engine(recipe, resolve(recipe, "toy", {"updates": 3, **settings}))


L = torch.optim.lr_scheduler
MAKERS: dict[str, Any] = {
    "step": lambda own: L.StepLR(own, 2),
    "milestones": lambda own: L.MultiStepLR(own, [2, 5]),
    "lambda": lambda own: L.LambdaLR(own, lambda n: 1 / (1 + n)),
    "cosine restarts": lambda own: L.CosineAnnealingWarmRestarts(own, 3),
    "cyclic": lambda own: L.CyclicLR(own, 0.001, 0.01, step_size_up=2, cycle_momentum=False),
    "in sequence": lambda own: L.SequentialLR(
        own, [L.LinearLR(own, total_iters=3), L.ExponentialLR(own, 0.9)], [3]
    ),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_torch_scheduler_continues_where_it_was(kind: str) -> None:
    recipe = Own(MAKERS[kind])
    config = resolve(recipe, "toy", {"updates": 9, "rate": 0.01, "momentum": 0.5})
    straight: list[Any] = []
    with open_engine(recipe, config) as engine:
        engine.run(4, straight.append)
        saved = engine.capture()
        engine.run(9, straight.append)
    with open_engine(recipe, config.changed(rate=0.3)) as other:
        other.restore(saved)
        records: list[Any] = []
        other.run(9, records.append)
    assert [(r.rates_used, r.rates_next, r.grad_norm) for r in records] == [
        (r.rates_used, r.rates_next, r.grad_norm) for r in straight[4:]
    ]


def test_a_plateau_keeps_all_its_counters() -> None:
    config = of(schedule="plateau", schedule_clock="validation", eval_every=1, schedule_interval=2)
    plan = schedule.build(config, optimizer())
    assert isinstance(plan, TorchSchedule)
    for clock, value in enumerate([1.0, 1.1, 1.1], 1):
        plan.advance(clock, value)
    own = optimizer()
    other = schedule.build(config, own)
    other.load_state_dict(plan.state_dict())
    other.advance(4, 1.1)
    assert own.param_groups[0]["lr"] == pytest.approx(0.1)


def test_a_metric_that_is_nan_is_a_bad_evaluation_for_a_plateau() -> None:
    own = optimizer()
    plan = schedule.build(of(schedule="plateau", schedule_clock="validation", eval_every=1, schedule_interval=1), own)
    for clock, value in enumerate([1.0, math.nan, math.nan], 1):
        plan.advance(clock, value)
    assert own.param_groups[0]["lr"] == pytest.approx(0.1)
