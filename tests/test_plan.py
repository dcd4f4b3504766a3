"""Plans: counting, the save interval, a measured sample, and a plan beside what happened."""

from __future__ import annotations

import json
import math
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from toys import Toy

from labkit import run
from labkit.config import RunConfig
from labkit.engine import open_engine
from labkit.errors import ConfigError, PlanError
from labkit.plan import check, ending, examples_in, memory_by_kind, plan, planned_updates, save_interval
from labkit.plan import measure as measuring
from labkit.plan.arithmetic import saves_in, updates_for, updates_per_epoch
from labkit.plan.interval import FLAT
from labkit.plan.words import duration, money, size
from labkit.recipe import resolve
from labkit.recipes import find
from labkit.state import digests

SHORT = {"sample_seconds": 0.1}


def config(**settings: Any) -> RunConfig:
    return RunConfig(recipe="toy", **{"batch_size": 4, **settings})


# --- counting -----------------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 60))
def test_counts_agree_with_going_through_the_epochs_batch_by_batch(examples: int, batch: int, updates: int) -> None:
    consumed = [0]
    while len(consumed) <= updates:
        left = examples - consumed[-1] % examples
        consumed.append(consumed[-1] + min(batch, left))
    assert [examples_in(n, examples, batch) for n in range(updates + 1)] == consumed
    for wanted in range(consumed[-1] + 1):
        assert updates_for(wanted, examples, batch) == next(n for n, c in enumerate(consumed) if c >= wanted)


def test_the_short_last_batch_of_an_epoch_is_an_update() -> None:
    assert updates_per_epoch(1257, 64) == 20 and planned_updates(config(epochs=3, batch_size=64), 1257) == 60
    assert examples_in(60, 1257, 64) == 3 * 1257


def test_of_several_goals_the_one_reached_first_ends_the_run_and_is_named() -> None:
    assert ending(config(updates=10, epochs=2), 12) == (6, "epochs")
    assert ending(config(updates=5, epochs=2), 12) == (5, "updates")
    assert ending(config(updates=50, examples=13), 12) == (4, "examples")
    assert ending(config(updates=50, tokens=100), 12, tokens_per_update=9.0) == (12, "tokens")
    assert ending(config(updates=50, seconds=10.0), 12, seconds_per_update=2.5) == (4, "seconds")


def test_the_number_of_updates_does_not_depend_on_the_microbatches_k14_04() -> None:
    whole, cut = config(epochs=2), config(epochs=2, microbatch_size=(1,))
    assert planned_updates(whole, 12) == planned_updates(cut, 12) == 6


@pytest.mark.parametrize("settings", [{}, {"updates": 0}, {"tokens": 5}])
def test_without_a_goal_there_is_nothing_to_plan(settings: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="nothing to plan"):
        planned_updates(config(**settings), 12)


def test_saves_are_those_at_the_start_at_intervals_and_at_the_end() -> None:
    assert [saves_in(10, every) for every in (0, 3, 5, 20)] == [2, 1 + 3 + 1, 1 + 2, 1 + 0 + 1]


# --- the save interval ----------------------------------------------------------------------------------------------


def overhead(updates: int, save: float, mean: float, update: float) -> float:
    return save / (updates * update) + updates * update / (2 * mean)


def test_the_interval_is_young_s_in_whole_updates() -> None:
    found = save_interval(2.0, 86400 / 4, 0.5, 10**9)
    assert found.updates == math.floor(math.sqrt(2 * 2.0 * 21600) / 0.5) == 587 and found.limited_by == "the formula"
    assert found.overhead == pytest.approx(overhead(587, 2.0, 21600, 0.5))
    least = min(overhead(n, 2.0, 21600, 0.5) for n in range(1, 5000))
    assert found.overhead <= least * 1.0001


@given(st.floats(0.01, 100), st.floats(1e3, 1e6), st.floats(0.001, 5))
def test_anywhere_on_the_flat_bottom_costs_at_most_one_point_more_and_outside_it_does(
    save: float, mean: float, update: float
) -> None:
    found = save_interval(save, mean, update, 10**9)
    least = math.sqrt(2 * save / mean)
    assert 1 <= found.flat_from <= found.updates <= found.flat_to
    for inside in (found.flat_from, found.flat_to):
        if inside != found.updates:
            assert overhead(inside, save, mean, update) <= least + FLAT + 1e-9
    assert overhead(found.flat_to + 1, save, mean, update) > least + FLAT - 1e-9
    if found.flat_from > 1:
        assert overhead(found.flat_from - 1, save, mean, update) > least + FLAT - 1e-9


def test_simulated_failures_lose_least_at_the_chosen_interval() -> None:
    save, mean, update = 5.0, 3600.0, 0.5
    chosen = save_interval(save, mean, update, 10**9).updates * update
    generator = np.random.Generator(np.random.PCG64(0))

    def lost(interval: float) -> float:
        """Share of the time that went to saves and to repeated work, over failures at random moments."""
        gaps = generator.exponential(mean, 20_000)
        cycles = np.floor(gaps / (interval + save))
        return float(1 - (cycles * interval).sum() / gaps.sum())

    assert lost(chosen) < lost(chosen / 8) and lost(chosen) < lost(chosen * 8)


@pytest.mark.parametrize(
    ("tolerate", "update", "updates", "expected", "why"),
    [
        (60.0, 0.5, 10**9, 120, "the tolerated loss"),
        (None, 0.5, 100, 100, "the length of the run"),
        (None, 500.0, 10**9, 1, "one update"),
        (0.1, 0.5, 10**9, 1, "one update"),
    ],
)
def test_the_interval_is_bounded_by_tolerance_run_and_one_update(
    tolerate: float | None, update: float, updates: int, expected: int, why: str
) -> None:
    found = save_interval(2.0, 21600.0, update, updates, tolerate)
    assert (found.updates, found.limited_by) == (expected, why)
    if why == "the tolerated loss":
        assert found.flat_to == expected  # nearly as good in time, but more would be lost than is allowed
    assert str(found)


def test_without_failures_only_the_tolerated_loss_counts() -> None:
    assert save_interval(1.0, math.inf, 0.1, 10**9, 30.0).updates == 300
    assert save_interval(1.0, math.inf, 0.1, 1000).limited_by == "the length of the run"


@pytest.mark.parametrize(
    "numbers",
    [(-1.0, 100.0, 1.0, 10), (1.0, 100.0, 0.0, 10), (math.nan, 100.0, 1.0, 10), (1.0, 100.0, 1.0, 10, -5.0),
     (60.0, 100.0, 1.0, 10)],
)  # fmt: skip
def test_numbers_that_mean_nothing_are_refused(numbers: tuple[Any, ...]) -> None:
    with pytest.raises(PlanError):
        save_interval(*numbers)


# --- the sample -----------------------------------------------------------------------------------------------------


class SlowStart(Toy):
    """Its first forward passes take long, as a compiler or an allocator does: preflight sees them too."""

    def __init__(self, tmp: Path) -> None:
        super().__init__()
        self.updates = 0

    def optimizer(self, config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
        made = super().optimizer(config, model)
        made.register_step_post_hook(self._wait)
        return made

    def _wait(self, *_: Any) -> None:
        self.updates += 1
        if self.updates == 1:
            time.sleep(0.6)


def test_warm_up_is_left_out_of_the_rate_and_reported_apart_k14_03(tmp_path: Path) -> None:
    made = plan(SlowStart(tmp_path), updates=1000, folder=tmp_path, sample_seconds=0.01)  # three blocks of one update
    assert made.measured.first_update >= 0.6 and made.measured.update < 0.15
    assert made.measured.first_update * made.updates > 2 * made.seconds  # a forecast from the first update alone


def test_evaluations_and_saves_come_from_measurement(tmp_path: Path) -> None:
    made = plan(Toy(), updates=100, eval_every=10, save_every=30, slow=0.002, slow_eval=0.004, folder=tmp_path, **SHORT)
    m = made.measured
    assert m.update >= 2 * 0.002 and m.evaluation >= 10 * 0.004 and m.save > 0  # 2 training, 10 validation examples
    assert (made.evaluations, made.saves, made.best_saves) == (10, 5, 5)
    expected = 100 * m.update + 10 * m.evaluation + (5 + 5) * m.save
    assert made.seconds == pytest.approx(expected)
    assert (m.examples_per_update, m.tokens_per_update) == (2.0, 2.0)


def test_device_hours_and_cost_multiply_by_time_once(tmp_path: Path) -> None:
    made = plan(Toy(), updates=50, price=2.5, currency="CHF", devices=4, folder=tmp_path, **SHORT)
    assert made.device_hours == pytest.approx(made.seconds / 3600 * 4)
    assert made.cost == pytest.approx(made.device_hours * 2.5)
    assert "CHF" in made.sentence() and "4 devices" in made.sentence()


def test_a_plan_ends_in_one_sentence_that_says_time_cost_disk_and_when_to_save(tmp_path: Path) -> None:
    made = plan(Toy(), updates=10**7, price=1.0, failures_per_day=4, tolerate_seconds=3600, folder=tmp_path, **SHORT)
    sentence = str(made).splitlines()[-1]
    assert sentence == made.sentence() and sentence.count(".\n") == 0 and sentence.endswith(".")
    for words in ("10000000 updates take about", "(within ", "EUR", "of disk free", "save every"):
        assert words in sentence
    assert made.interval is not None and made.save_every == made.interval.updates
    assert json.loads(json.dumps(made.to_dict()))["sentence"] == sentence


def test_the_clock_is_read_only_when_the_device_is_done_k14_02(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(measuring, "synchronize", lambda device: seen.append("wait"))
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: seen.append("clock") or float(len(seen)))
    measuring.timed(lambda: seen.append("work"), torch.device("cpu"))
    assert seen == ["wait", "clock", "work", "wait", "clock"]


def test_a_slow_update_is_not_sampled_for_minutes(tmp_path: Path) -> None:
    start = time.monotonic()
    made = plan(Toy(), updates=1000, slow=0.1, folder=tmp_path, sample_seconds=0.2)
    assert made.measured.update >= 0.2 and time.monotonic() - start < 30
    assert made.measured.updates_sampled == measuring.FEWEST_BLOCKS


def test_a_plan_leaves_no_file_and_no_random_stream_moved(tmp_path: Path) -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = random.random(), np.random.rand(), torch.rand(1).item()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    plan(Toy(), updates=20, eval_every=5, folder=tmp_path, **SHORT)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wrong", [{"price": -1.0}, {"devices": 0}, {"failures_per_day": math.nan}, {"tolerate_seconds": -1.0},
              {"sample_seconds": 0.0}],
)  # fmt: skip
def test_a_plan_refuses_numbers_that_mean_nothing(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(PlanError):
        plan(Toy(), updates=10, folder=tmp_path, **wrong)
    with pytest.raises(ConfigError, match="end"):
        plan(Toy(), folder=tmp_path, **SHORT)


# --- memory and disk ------------------------------------------------------------------------------------------------


def test_memory_by_kind_is_that_of_the_real_tensors() -> None:
    recipe = find("digits")
    with open_engine(recipe, resolve(recipe, "digits", {"updates": 3, "ema_decay": "0.9"})) as engine:
        engine.run(2)
        before = engine.capture()
        found = memory_by_kind(engine)
        after = engine.capture()
    weights = 4 * (64 * 64 + 64 + 64 * 10 + 10)
    assert found["parameters"] == found["gradients"] == found["average"] == weights
    assert 2 * weights <= found["optimizer"] <= 2 * weights + 64  # two moments, and a counter for each parameter
    assert found["batch"] == 64 * (64 * 4 + 8) and found["activations"] > 64 * 64 * 4
    assert "buffers" not in found and found["peak of process"] > sum(found.values()) - found["peak of process"]
    assert digests(before) == digests(after)  # looking moved nothing, dropout's stream included


def test_shared_memory_is_counted_once() -> None:
    tied = nn.Linear(4, 4, bias=False)
    both: list[Tensor] = [tied.weight, tied.weight.detach().view(16)]
    assert measuring._bytes(both) == 64


def test_disk_is_what_retention_holds_and_a_run_stays_within_it(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"updates": 60, "eval_every": 5, "save_every": 10, "milestone_every": 20, "keep": 2}
    made = plan(Toy(), folder=tmp_path, **settings, **SHORT)
    assert made.checkpoints_held == 2 + 2 + 3
    with run.start(Toy(), tmp_path / "r", **settings) as session:
        session.train()
    used = sum(path.stat().st_size for path in (tmp_path / "r" / "checkpoints").rglob("*") if path.is_file())
    assert used <= made.disk_bytes


# --- a plan beside what happened ------------------------------------------------------------------------------------


def planned_and_run(tmp_path: Path, **changed: Any) -> Path:
    settings = {"updates": 40, "eval_every": 10, "slow": 0.002}
    made = plan(Toy(), folder=tmp_path, **settings, **SHORT)
    made.store(tmp_path / "plans" / f"{made.key}.json")
    with run.start(Toy(), tmp_path / "r", **{**settings, **changed}) as session:
        session.train()
    return tmp_path / "r"


def test_a_check_compares_with_the_plan_of_the_same_settings_whatever_seed_rate_and_target(tmp_path: Path) -> None:
    found = check(planned_and_run(tmp_path, seed=5, rate=0.5, updates=20, save_every=5), tmp_path / "plans")
    assert (found.planned_updates, found.real_updates) == (40, 20)
    assert found.ratio == pytest.approx(found.real_seconds / found.planned_seconds)
    (stored,) = (json.loads(path.read_text())["measured"] for path in (tmp_path / "plans").iterdir())
    expected = 20 * stored["update"] + 2 * stored["evaluation"] + (1 + 4 + 1) * stored["save"]  # start, every 5, a best
    assert found.planned_seconds == pytest.approx(expected)
    assert found.within == (0.75 <= found.ratio <= 1.25) and found.to_dict()["within"] is found.within
    assert found.real_disk_bytes > 0 and "times the plan" in str(found)


def test_a_check_without_a_plan_says_what_differs_in_the_nearest(tmp_path: Path) -> None:
    folder = planned_and_run(tmp_path, batch_size=3)
    with pytest.raises(PlanError, match=r"batch_size=2 \(here 3\)"):
        check(folder, tmp_path / "plans")
    with pytest.raises(PlanError, match="make one"):
        check(folder, tmp_path / "nowhere")


def test_a_damaged_or_foreign_plan_is_named(tmp_path: Path) -> None:
    folder = planned_and_run(tmp_path)
    (stored,) = (tmp_path / "plans").iterdir()
    for text in ("{", "[]", '{"format": 99}', '{"format": 1, "measured": {}}'):
        stored.write_text(text)
        with pytest.raises(PlanError, match=stored.name):
            check(folder, tmp_path / "plans")


def test_a_run_that_still_works_or_was_killed_can_be_checked(tmp_path: Path) -> None:
    made = plan(Toy(), updates=40, folder=tmp_path, **SHORT)
    made.store(tmp_path / "r" / "plan.json")
    with run.start(Toy(), tmp_path / "r", updates=40, signals_every=1) as session:
        with pytest.raises(PlanError, match="no update"):
            check(tmp_path / "r")
        session.sample(7)
        session.publish()
        found = check(tmp_path / "r")
    assert found.real_updates == 7 and found.real_seconds > 0


# --- words ----------------------------------------------------------------------------------------------------------


def test_words_for_people_round_but_never_to_nothing() -> None:
    assert [duration(s) for s in (2e-5, 0.0123, 5.0, 300.0, 7200.0, 864000.0)] == [
        "20 us", "12.3 ms", "5 s", "5 min", "2 h", "10 days",
    ]  # fmt: skip
    assert [size(b) for b in (12, 67800, 3.31e8, 4e13)] == ["12 B", "67.8 kB", "331 MB", "40 TB"]
    assert [money(m, "EUR") for m in (0.0, 0.0004, 12.5)] == ["0.00 EUR", "less than 0.01 EUR", "12.50 EUR"]
