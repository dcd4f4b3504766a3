"""Scoring leaves no trace and divides last; what the score means is decided from saved values alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from stops import differing
from torch import Tensor, nn
from toys import Items, Net, Toy

from labkit import randomness
from labkit.build import build, preflight
from labkit.config import RunConfig
from labkit.engine import Engine, open_engine
from labkit.errors import ConfigError, RecipeError
from labkit.evaluate import decide, evaluate, leaving_no_trace, out_of_patience
from labkit.recipe import resolve
from labkit.state import Best, capture_model, digests
from labkit.weighting import Total, perplexity


class Losses(Toy):
    """The loss of an example is a number of its own."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = torch.tensor(values, dtype=torch.float64)

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, tuple[Tensor | float, int]]:
        indices = batch[0]
        return {"loss": (self.values[indices].sum(), len(indices))}


@pytest.mark.parametrize("batch_size", [1, 3, 4, 10])
def test_the_mean_does_not_depend_on_the_batch_size(batch_size: int) -> None:
    values = [0.1, 5, 1, 1.7, 1, 5, 1, 1 / 3, 1, 2]
    found = evaluate(Net(), Losses(values), Items(10), batch_size=batch_size)
    assert found is not None and found["loss"].count == 10
    assert found["loss"].mean == pytest.approx(sum(values) / 10, abs=1e-12)


def test_an_empty_metric_has_no_mean_and_no_division_by_zero() -> None:
    class Nothing(Toy):
        def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, tuple[Tensor | float, int]]:
            return {"loss": (0.0, 0)}

    found = evaluate(Net(), Nothing(), Items(4))
    assert found == {"loss": Total(0.0, 0)}
    best = Best()
    assert not decide(best, RunConfig(recipe="d"), found, 1) and best.value is None


@pytest.mark.parametrize("count", [2.0, -1, None, np.int64(2)])
def test_a_count_that_is_no_whole_number_is_refused(count: Any) -> None:
    class Odd(Toy):
        def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, tuple[Tensor | float, int]]:
            return {"loss": (1.0, count)}

    with pytest.raises(RecipeError, match="count"):
        evaluate(Net(), Odd(), Items(4))
    parts = build(Odd(), resolve(Odd(), "toy", {"updates": 3, "eval_every": 2}))
    with pytest.raises(RecipeError, match="count"):
        preflight(parts)  # at the start, and not at the first evaluation an hour later


class Disturbing(Toy):
    """Metrics that draw from everything, write to buffers, replace one, and may fail."""

    fail = False

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.Generator()
        self.calls = {"n": 0}

    def generators(self) -> dict[str, Any]:
        return {"own": self.own}

    def stateful(self) -> dict[str, Any]:
        outer = self

        class Calls:
            def state_dict(self) -> dict[str, int]:
                return outer.calls

            def load_state_dict(self, saved: dict[str, int]) -> None:
                outer.calls = dict(saved)

        return {"calls": Calls()}

    def objective(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        summed, count = super().objective(model, batch)
        noise = torch.rand((), generator=self.own)
        return summed * (1 + 0.01 * noise if model.training else 1), count

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, tuple[Tensor | float, int]]:
        model.train()
        model(batch[1])
        torch.rand(3, generator=self.own)
        torch.manual_seed(0)
        np.random.seed(0)
        model.norm.running_mean = torch.full((2,), 7.0)
        self.calls["n"] += 1
        if self.fail:
            raise ZeroDivisionError("mine")
        return {"loss": (1.0, 1)}


def test_an_evaluation_moves_no_part_of_the_state_whatever_the_metric_does() -> None:
    recipe = Disturbing()
    with open_engine(recipe, resolve(recipe, "toy", {"updates": 9, "eval_every": 1})) as engine:
        engine.run(2)
        with engine.working():
            engine.update()
        before, running = engine.capture(), engine.state.model.norm.running_mean
        with engine.working():
            assert engine.evaluate_if_due() is not None
        expected = {"counters.evaluations", "counters.evaluated_update", "best.without_improvement"}
        assert set(differing(before, engine.capture())) == expected
        assert engine.state.model.norm.running_mean is running


def test_an_evaluation_that_fails_puts_everything_back() -> None:
    recipe = Disturbing()
    config = resolve(recipe, "toy", {"updates": 9, "eval_every": 1, "ema_decay": 0.9, "eval_weights": "ema"})
    with open_engine(recipe, config) as engine:
        engine.run(2)
        with engine.working():
            engine.update()
        before = engine.capture()
        recipe.fail = True
        with engine.working(), pytest.raises(ZeroDivisionError):
            engine.evaluate_if_due()
        assert differing(before, engine.capture()) == []
        recipe.fail = False
        engine.run(5)


def test_preflight_leaves_no_trace() -> None:
    recipe = Disturbing()
    parts = build(recipe, resolve(recipe, "toy", {"updates": 9, "eval_every": 1}))
    before, callers = digests(parts.state.capture()), randomness.capture()
    preflight(parts)
    assert digests(parts.state.capture()) == before
    assert randomness.differences(callers, randomness.capture()) == []


AVERAGED = {"ema_decay": 0.9, "eval_weights": "ema"}


@pytest.mark.parametrize("settings", [{}, AVERAGED, {**AVERAGED, "ema_buffers": "recompute"}])
def test_evaluating_always_seldom_or_never_gives_the_same_trajectory(settings: dict[str, Any]) -> None:
    seen = []
    for every in (0, 1, 5):
        recipe = Disturbing()
        with open_engine(recipe, resolve(recipe, "toy", {"updates": 9, "eval_every": every, **settings})) as engine:
            records: list[Any] = []
            engine.run(9, records.append)
            state = digests(engine.capture())
            listens = ("best", "counters.eval")
            seen.append((records, {part: state[part] for part in state if not part.startswith(listens)}))
    assert seen[0] == seen[1] == seen[2]


def test_modes_come_back_module_by_module() -> None:
    model = Net(0.5, norm=True)
    model.norm.eval()  # frozen on purpose
    modes = capture_model(model)["training"]
    with pytest.raises(ZeroDivisionError), leaving_no_trace(model):
        assert not any(module.training for module in model.modules())
        raise ZeroDivisionError
    assert capture_model(model)["training"] == modes


def test_two_evaluations_of_the_same_weights_are_equal() -> None:
    model = Net(0.5, norm=True)
    assert evaluate(model, Toy(), Items(10)) == evaluate(model, Toy(), Items(10))


def test_an_evaluation_told_to_stop_counts_nothing_and_is_done_again() -> None:
    with open_engine(Toy(), resolve(Toy(), "toy", {"updates": 9, "eval_every": 3, "eval_batch_size": 2})) as engine:
        engine.run(2)
        with engine.working():
            engine.update()
            before = engine.capture()
            asked = iter([False, False, True])
            assert engine.evaluate_if_due(lambda: next(asked)) is None
            assert differing(before, engine.capture()) == []
            assert engine.evaluate_if_due() is not None
            assert engine.evaluate_if_due() is None  # once is enough


def test_the_average_with_recomputed_statistics_is_scored_and_the_own_weights_come_back() -> None:
    found = {}
    for buffers in ("copy", "recompute"):
        config = resolve(Toy(), "toy", {
            "updates": 9, "eval_every": 9, "ema_decay": 0.5, "eval_weights": "ema", "ema_buffers": buffers, "rate": 0.3,
        })  # fmt: skip
        with open_engine(Toy(), config) as engine, engine.working():
            for _ in range(9):
                engine.update()
            before = engine.capture()
            done = engine.evaluate_if_due()
            assert done is not None and differing(before, engine.capture()) != []
            assert digests(before)["parameters"] == digests(engine.capture())["parameters"]
            assert digests(before)["buffers"] == digests(engine.capture())["buffers"]
            found[buffers] = done.totals["loss"]
    assert found["copy"] != found["recompute"]


# --- decisions -------------------------------------------------------------------------------------------------------

NAN, INF = math.nan, math.inf
DECISIONS: list[tuple[dict[str, Any], list[float], list[int], list[int]]] = [
    # settings, values, which evaluations (from 1) are best, evaluations without improvement after each
    ({}, [1.0, NAN, 0.9], [1, 3], [0, 1, 0]),
    ({}, [1.0, NAN, NAN, NAN], [1], [0, 1, 2, 3]),
    ({}, [NAN, 1.0, 0.8], [2, 3], [1, 0, 0]),
    ({}, [INF, 1.0, 0.8], [2, 3], [1, 0, 0]),
    ({"mode": "max"}, [-INF, 1.0, 2.0], [2, 3], [1, 0, 0]),
    ({"mode": "max"}, [INF, 1.0], [2], [1, 0]),
    ({}, [-INF, 1.0], [2], [1, 0]),
    ({"mode": "max"}, [0.0, -0.5], [1], [0, 1]),
    ({}, [0.0, 0.3], [1], [0, 1]),
    ({}, [1.0, 1.1, 0.9, 1.0, 0.8, 0.9, 0.7], [1, 3, 5, 7], [0, 1, 0, 1, 0, 1, 0]),
    ({"min_improvement": 0.15}, [1.0, 1.1, 0.9], [1], [0, 1, 2]),
    ({"min_improvement": 0.15}, [1.0, 0.9, 0.84], [1, 3], [0, 1, 0]),
    ({"mode": "max"}, [0.5, 0.6, 0.7, 0.8], [1, 2, 3, 4], [0, 0, 0, 0]),
    ({}, [1.0, 1.0], [1], [0, 1]),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "values", "bests", "waits"), DECISIONS, ids=[str(d[:2]) for d in DECISIONS])
def test_the_table_of_decisions(
    settings: dict[str, Any], values: list[float], bests: list[int], waits: list[int]
) -> None:
    config, best = RunConfig(recipe="d", **settings), Best()
    for number, value in enumerate(values, 1):
        assert decide(best, config, {"loss": Total(value, 1)}, 10 * number) == (number in bests)
        assert best.without_improvement == waits[number - 1]
    assert best.update == 10 * bests[-1] and best.value == values[bests[-1] - 1]


def test_patience_is_derived_from_the_saved_counter() -> None:
    config = RunConfig(recipe="d", patience=2, eval_every=1)
    assert [out_of_patience(Best(1.0, 1, wait), config) for wait in (0, 1, 2, 3)] == [False, False, True, True]
    assert not out_of_patience(Best(1.0, 1, 99), RunConfig(recipe="d"))


def test_a_metric_that_is_not_measured_is_said_before_training() -> None:
    recipe = Toy()
    parts = build(recipe, resolve(recipe, "toy", {"updates": 3, "eval_every": 1, "metric": "accurcy", "mode": "max"}))
    with pytest.raises(ConfigError, match="accurcy.*loss"):
        preflight(parts)
    with pytest.raises(ConfigError, match="accurcy"):
        decide(Best(), RunConfig(recipe="d", metric="accurcy"), {"loss": Total(1.0, 1)}, 1)


def test_perplexity_is_the_exponential_of_the_mean_of_all_tokens() -> None:
    model, recipe = Net(), Losses([1.0] * 8 + [5.0] * 2)
    found = evaluate(model, recipe, Items(10), batch_size=4)
    assert found is not None and perplexity(found["loss"]) == pytest.approx(math.exp(1.8))


def test_evaluation_reads_examples_as_they_are_without_the_transform() -> None:
    totals = []
    for settings in ({}, {"jitter": True}):
        parts = build(Toy(), resolve(Toy(), "toy", {"updates": 3, "eval_every": 1, **settings}))
        with Engine(parts) as engine:
            totals.append(evaluate(engine.state.model, engine.parts.recipe, parts.splits.train))
    assert totals[0] == totals[1]
