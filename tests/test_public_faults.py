"""Faults that other trainers had in public, kinds K01 to K07, K10 and K11; K12 is in test_interrupt.py.

Each has a test named after its number, or a line that says why it cannot occur here. Wherever a number can be checked
in memory it is: hop() stops a run and goes on with new objects, from other global streams.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stops import contents, differing, split, straight
from torch import Tensor, nn
from toys import Items, Pull, Toy

from labkit import randomness, run
from labkit.config import RunConfig
from labkit.engine import open_engine
from labkit.errors import (
    ConfigError,
    DataError,
    IdentityError,
    LabkitError,
    NonfiniteError,
    RecipeError,
    StateError,
)
from labkit.evaluate import decide, evaluate
from labkit.norms import clip_, gradient_norm
from labkit.precision import Precision
from labkit.recipe import Recipe, Splits, resolve
from labkit.recipes.names import Vocabulary
from labkit.records import read_attempts, read_lines
from labkit.run.session import Session
from labkit.state import Best, Saved, digests
from labkit.weighting import Total, perplexity

NUMBERS = {
    "K01": (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12),
    "K02": (2, 3, 4, 5, 6, 7, 8, 9, 10),
    "K03": (1, 3, 4, 5, 6, 7),
    "K04": (1, 2, 3, 5, 6, 7, 8),
    "K05": (1, 2, 3, 4, 5, 7, 8),
    "K06": (1, 2, 3, 4, 6),
    "K07": (1, 2, 3, 4, 5, 6, 7),
    "K10": (1, 2, 3, 4, 5, 6, 8, 9),
    "K11": (1, 2, 3, 4, 5, 6, 8, 9, 10),
    "K12": (1, 2, 3, 4, 5, 6, 8, 9),
}

CANNOT_OCCUR = {
    "K05-07": "an average lives on the device of its model, a load copies into it in place, and no setting moves it",
}
"""Numbers without a test of their own: why the fault has no place here."""


def test_every_number_has_a_test_or_a_reason() -> None:
    names = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    tested = {f"K{kind}-{number}" for kind, number in re.findall(r"def test_K(\d\d)_(\d\d)_", names)}
    wanted = {f"{kind}-{number:02d}" for kind, numbers in NUMBERS.items() for number in numbers}
    assert wanted - tested - set(CANNOT_OCCUR) == set()
    assert set(CANNOT_OCCUR) <= wanted - tested and all(CANNOT_OCCUR.values())


@dataclass
class Hop:
    """What a run did over all its parts: indices of the training microbatches, records, the state at each stop."""

    seen: list[list[int]] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)
    states: list[Saved] = field(default_factory=list)

    @property
    def final(self) -> Saved:
        return self.states[-1]

    def epochs(self, updates: int) -> list[list[int]]:
        """All indices of each stretch of so many microbatches, sorted."""
        return [sorted(sum(self.seen[k : k + updates], [])) for k in range(0, len(self.seen), updates)]


def hop(*stops: int, make: Any = Toy, **settings: Any) -> Hop:
    """Stopped at each of stops but the last, in memory."""
    done = Hop()
    for stop in stops:
        randomness.seed_all("somebody else's", stop)
        recipe = make()
        with open_engine(recipe, resolve(recipe, "object:toy", {"updates": stops[-1], **settings})) as engine:
            if done.states:
                engine.restore(done.final)
            engine.run(stop, done.records.append)
            done.states.append(engine.capture())
            done.seen += recipe.seen
    return done


def same(left: Hop, right: Hop) -> bool:
    return left.seen == right.seen and left.records == right.records and differing(left.final, right.final) == []


# --- K01 resume position and data order ------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [5, 6, 7])
def test_K01_01_a_resume_at_the_edge_of_an_epoch_runs_the_rest(stop: int, tmp_path: Path) -> None:
    gold, found = hop(12), hop(stop, 12)
    assert same(gold, found) and found.epochs(6) == [list(range(12))] * 2
    split(tmp_path / "r", Toy, stop, 12)
    with run.resume(tmp_path / "r", recipe=Toy()) as session:
        outcome = session.train()
        assert (outcome.status, outcome.updates_done, session.state.counters.committed) == ("finished", 0, 12)
        assert differing(gold.final, session.capture()) == []


def test_K01_02_later_epochs_keep_their_own_order() -> None:
    gold = hop(15, n=10)
    assert gold.epochs(5) == [list(range(10))] * 3 and gold.seen[:5] != gold.seen[5:10]
    for stop in range(1, 15):
        assert same(gold, hop(stop, 15, n=10)), stop


def test_K01_03_the_offset_of_a_resume_is_used_once() -> None:
    found = hop(4, 24)
    assert same(hop(24), found) and found.epochs(6) == [list(range(12))] * 4


def test_K01_04_no_permutation_is_drawn_before_it_is_saved() -> None:
    found = hop(2, 8, n=8)
    assert same(hop(8, n=8), found) and found.seen[:4] != found.seen[4:]
    with open_engine(Toy(), resolve(Toy(), "t", {"updates": 4})) as engine:
        before = digests(engine.capture())["rng.torch"]
        engine.parts.order.indices(0, 0, 12)
        assert digests(engine.capture())["rng.torch"] == before


def test_K01_05_the_cursor_adds_up_over_stops_in_one_epoch() -> None:
    found = hop(3, 5, 8, 20, n=24)
    assert [state["cursor"]["examples"] for state in found.states[:3]] == [6, 10, 16]
    assert same(hop(20, n=24), found)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_K01_06_workers_start_at_the_restored_place(workers: int) -> None:
    found = hop(4, 7, 10, n=24, workers=workers, start_method="fork")
    assert found.seen == hop(10, n=24).seen
    assert [state["cursor"]["examples"] for state in found.states] == [8, 14, 20]


def test_K01_07_the_cursor_counts_examples_not_updates_or_microbatches() -> None:
    found = hop(2, 6, n=36, batch_size=6, microbatch_size=(2,))
    assert found.states[0]["cursor"] == {"epoch": 0, "examples": 12}
    assert found.seen[6:8] == hop(6, n=36, batch_size=6, microbatch_size=(2,)).seen[6:8] and len(found.seen) == 18


class Labelled(Toy):
    """A recipe whose classes are numbered in the order given, as iterating a set would."""

    def __init__(self, labels: Sequence[str]) -> None:
        super().__init__()
        self.labels = list(labels)

    def fingerprint(self, config: RunConfig) -> Mapping[str, str]:
        return {"train": ",".join(self.labels)}


def test_K01_09_a_numbering_that_changed_is_refused_and_ours_is_sorted(tmp_path: Path) -> None:
    split(tmp_path / "r", lambda: Labelled("abc"), 3)
    with pytest.raises(IdentityError, match="data.train.digest: checkpoint 'a,b,c', now 'c,a,b'"):
        run.resume(tmp_path / "r", recipe=Labelled("cab"))
    assert Vocabulary(["bo", "ab"]).letters == Vocabulary(["ab", "bo"]).letters == "abo"


@pytest.mark.parametrize("persistent", [True, False])
def test_K01_10_epochs_after_a_resume_with_workers_are_whole(persistent: bool) -> None:
    found = hop(3, 18, workers=1, start_method="fork", persistent_workers=persistent)
    assert found.epochs(6) == [list(range(12))] * 3 and found.seen == hop(18).seen


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"n": 22}, "data.train.length: checkpoint 20, now 22"), ({"batch_size": 5}, "batch_size: checkpoint 4, now 5"),
     ({"microbatch_size": (2,)}, "microbatch_size")],
)  # fmt: skip
def test_K01_11_changed_length_or_batch_is_refused(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    split(tmp_path / "r", Toy, 2, n=20, batch_size=4)
    file = tmp_path / "r" / "config.json"
    meta = json.loads(file.read_text())
    meta["config"].update({name: value for name, value in settings.items() if name != "n"})
    meta["config"]["options"].update({"n": settings.get("n", 20)})
    file.write_text(json.dumps(meta))
    before, streams = contents(tmp_path / "r"), randomness.capture()
    with pytest.raises(IdentityError, match=said):
        run.resume(tmp_path / "r", recipe=Toy())
    assert contents(tmp_path / "r") == before and randomness.differences(streams, randomness.capture()) == []


def test_K01_12_the_target_in_updates_decides_not_the_epochs(tmp_path: Path) -> None:
    split(tmp_path / "r", Toy, 4, n=10)
    with run.resume(tmp_path / "r", recipe=Toy(), updates=20) as session:
        outcome = session.train()
    assert (outcome.status, outcome.update, outcome.reason) == ("finished", 20, "target reached: updates=20")


# --- K02 schedules and counters --------------------------------------------------------------------------------------


def test_K02_02_a_restored_schedule_counts_updates_and_must_be_there() -> None:
    settings = {"schedule": "linear", "warmup": 10, "horizon": 100, "rate": 1e-6}
    found = hop(40, 41, **settings)
    assert found.records[40].rates_used[0] == pytest.approx(1e-6 * 60 / 90)
    broken = {name: part for name, part in found.states[0].items() if name != "schedule"}
    with open_engine(Toy(), resolve(Toy(), "t", {"updates": 41, **settings})) as engine:
        with pytest.raises(StateError, match="lacks schedule"):
            engine.restore(broken)


def test_K02_03_a_scaler_skip_moves_neither_schedule_nor_average_nor_updates() -> None:
    class At3(Toy):
        def objective(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
            summed, count = super().objective(model, batch)
            return (summed * 1e34 if model.training and len(self.seen) == 3 else summed), count

    settings = {"precision": "fp16", "initial_scale": 8.0, "schedule": "linear", "horizon": 10, "ema_decay": 0.9}
    recipe = At3()
    with open_engine(recipe, resolve(recipe, "t", {"updates": 10, **settings})) as engine, engine.working():
        for _ in range(5):
            engine.update()
        counters, state = engine.state.counters, engine.state
        assert (counters.attempted, counters.committed, counters.scaler_skipped) == (5, 4, 1)
        assert state.schedule.state_dict()["clock"] == 4 and state.ema is not None and state.ema.count == 4


def test_K02_04_a_scale_that_grew_is_not_a_skip() -> None:
    class Last(Toy):
        def objective(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
            summed, count = super().objective(model, batch)
            return (summed * 1e38 if model.training and len(self.seen) == 5 else summed), count

    recipe = Last()
    settings = {"precision": "fp16", "initial_scale": 8.0, "growth_interval": 2, "updates": 9}
    with open_engine(recipe, resolve(recipe, "t", settings)) as engine, engine.working():
        records = [engine.update() for _ in range(5)]
        scales = [record.scale for record in records] + [engine.state.precision.current_scale]
        assert scales == [8, 8, 16, 16, 32, 16]
        assert engine.state.counters.committed == 4 and records[-1].skipped is not None


def test_K02_05_the_schedule_moves_once_an_update() -> None:
    whole = hop(4, n=16, batch_size=4, schedule="linear", horizon=8)
    cut = hop(4, n=16, batch_size=4, microbatch_size=(1,), schedule="linear", horizon=8)
    used = [record.rates_used[0] for record in cut.records]
    assert used == [record.rates_used[0] for record in whole.records] == [0.01 * (1 - k / 8) for k in range(4)]
    assert len(cut.seen) == 16
    with pytest.raises(ConfigError):
        RunConfig(recipe="d", microbatch_size=(0,))


def test_K02_06_saving_and_loading_change_no_counter(tmp_path: Path) -> None:
    gold = split(tmp_path / "r", Toy, 6)
    for _ in range(3):
        with run.resume(tmp_path / "r", recipe=Toy()) as session:
            session.publish()
            assert session.update == 6 and differing(gold, session.capture()) == []
    with run.resume(tmp_path / "r", recipe=Toy(), updates=7) as session:
        session.train()
    lines = read_lines(tmp_path / "r" / "trajectory.jsonl").records
    assert [line["update"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]


def test_K02_07_the_plan_ends_where_it_ends_and_an_extension_asks_for_a_new_one(tmp_path: Path) -> None:
    found = hop(10, schedule="onecycle", horizon=10)
    rates = [record.rates_used[0] for record in found.records]
    assert len(set(rates)) == 10 and rates[3:] == sorted(rates[3:], reverse=True)
    assert found.records[-1].rates_next[0] == pytest.approx(0)  # the floor, and it stays there
    split(tmp_path / "r", Toy, 10, schedule="onecycle", horizon=10)
    with pytest.raises(ConfigError, match="plan for the rest"):
        run.resume(tmp_path / "r", recipe=Toy(), updates=12)
    with run.resume(tmp_path / "r", recipe=Toy(), updates=12, after_horizon="hold") as session:
        assert session.train().update == 12


class Watched(Toy):
    """Its metric follows the option `script`."""

    def prefers(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**super().prefers(options), "metric": "scripted", "mode": "min", "eval_every": 1}


def test_K02_08_a_plateau_keeps_its_count_of_bad_evaluations() -> None:
    settings = {
        "script": "1.0,1.1,1.1,1.1", "schedule": "plateau", "schedule_clock": "validation", "schedule_interval": 2,
    }  # fmt: skip
    gold = hop(4, make=Watched, **settings)
    rate = gold.final["optimizer"]["groups"][0]["lr"]
    assert rate == pytest.approx(0.001)
    assert hop(3, make=Watched, **settings).final["optimizer"]["groups"][0]["lr"] == 0.01
    for stop in (1, 2, 3):
        assert differing(gold.final, hop(stop, 4, make=Watched, **settings).final) == []


class Decaying(Toy):
    """A schedule of the weight decay, from 0 to 0.1 over ten updates; the constructor says 0.05."""

    def optimizer(self, config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=config.rate, weight_decay=0.05)

    def schedule(self, config: RunConfig, optimizer: torch.optim.Optimizer) -> Any:
        class Plan:
            def __init__(self) -> None:
                self.n = 0
                self.set()

            def set(self) -> None:
                optimizer.param_groups[0]["weight_decay"] = 0.01 * self.n

            def step(self) -> None:
                self.n += 1
                self.set()

            def state_dict(self) -> dict[str, int]:
                return {"n": self.n}

            def load_state_dict(self, saved: dict[str, int]) -> None:
                self.n = saved["n"]

        return Plan()


def test_K02_09_every_hyperparameter_is_restored_before_the_first_update() -> None:
    gold = hop(5, make=Decaying)
    with open_engine(Decaying(), resolve(Decaying(), "t", {"updates": 6})) as engine:
        engine.restore(gold.final)
        group = {name: value for name, value in engine.state.optimizer.param_groups[0].items() if name != "params"}
        assert group["weight_decay"] == 0.05 == pytest.approx(0.01 * 5)
        saved = {name: value for name, value in gold.final["optimizer"]["groups"][0].items() if name != "names"}
        assert group == saved
    assert same(hop(6, make=Decaying), hop(5, 6, make=Decaying))


def test_K02_10_a_state_names_the_next_epoch_and_the_next_place() -> None:
    found = hop(1, 2, 3, 6, 24, 30)
    assert [state["cursor"] for state in found.states[:4]] == [
        {"epoch": 0, "examples": 2}, {"epoch": 0, "examples": 4}, {"epoch": 0, "examples": 6},
        {"epoch": 1, "examples": 0},
    ]  # fmt: skip
    assert found.states[4]["cursor"] == {"epoch": 4, "examples": 0} and found.records[24].epoch == 4
    assert same(hop(30), found)


# --- K03 microbatches ------------------------------------------------------------------------------------------------


def pulled(examples: list[tuple[float, int]], cut: tuple[int, ...], **settings: Any) -> Any:
    """The record of one update over all examples, and the weight after it (SGD, rate 1, from 0)."""
    recipe = Pull(examples)
    config = resolve(recipe, "t", {"updates": 1, "batch_size": len(examples), "microbatch_size": cut, **settings})
    with open_engine(recipe, config) as engine, engine.working():
        record = engine.update()
        return record, float(engine.state.model.w.detach())


@pytest.mark.parametrize("cut", [(), (2,), (1, 3), (1,)])
def test_K03_01_an_update_is_the_mean_over_its_tokens_however_it_is_cut(cut: tuple[int, ...]) -> None:
    record, weight = pulled([(8.0, 1), (0.0, 1), (0.0, 1), (4.0, 1)], cut)
    assert record.grad_norm == pytest.approx(3.0) and weight == pytest.approx(-3.0) and record.loss_count == 4
    uneven, _ = pulled([(8.0, 1), (4 / 3, 3)], cut[:1])
    assert uneven.grad_norm == pytest.approx(3.0)
    padded, _ = pulled([(8.0, 1), (99.0, 0), (0.0, 2), (4.0, 1)], cut)
    assert padded.grad_norm == pytest.approx(3.0)
    nothing, weight = pulled([(8.0, 0), (99.0, 0)], (1,))
    assert nothing.skipped == "no valid targets" and weight == 0


def test_K03_03_the_short_last_update_is_made_and_nothing_leaks_into_the_next_epoch() -> None:
    settings = {"n": 6, "batch_size": 8, "microbatch_size": (2,)}
    found = hop(2, **settings)
    assert len(found.records) == 2 and found.final["cursor"] == {"epoch": 2, "examples": 0}
    assert [sorted(sum(found.seen[k : k + 3], [])) for k in (0, 3)] == [list(range(6))] * 2
    with open_engine(Toy(), resolve(Toy(), "t", {"updates": 2, **settings})) as engine, engine.working():
        engine.update()
        for parameter in engine.state.model.parameters():
            assert parameter.grad is not None
            parameter.grad.fill_(math.nan)  # whatever is left there must not matter
        engine.update()
        assert digests(engine.state.capture())["parameters"] == digests(found.final)["parameters"]


def test_K03_04_a_stop_in_the_middle_of_an_update_finishes_it_first(tmp_path: Path) -> None:
    settings = {"n": 60, "batch_size": 10, "microbatch_size": (2,)}

    class Asking(Toy):
        session: Session | None = None

        def objective(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
            if self.session is not None and len(self.seen) == 6 * 5 + 3:
                self.session.request_stop("in microbatch 4 of update 7")
            return super().objective(model, batch)

    recipe = Asking()
    with run.start(recipe, tmp_path / "r", updates=12, **settings) as session:
        recipe.session = session
        assert session.train().update == 7 and session.state.cursor.examples == 10
    with run.resume(tmp_path / "r", recipe=Toy()) as session:
        session.train()
        assert differing(straight(Toy, 12, **settings)[0], session.capture()) == []


def test_K03_05_an_update_is_clipped_once() -> None:
    class Two(Recipe):
        """Gradients (3, 0) and (0, 4) of two microbatches."""

        name = "two"

        def splits(self, config: RunConfig) -> Splits:
            return Splits([torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])])

        def model(self, config: RunConfig) -> nn.Module:
            model = nn.Module()
            model.w = nn.Parameter(torch.zeros(2))
            return model

        def optimizer(self, config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.SGD(model.parameters(), lr=1.0)

        def objective(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
            return (batch * model.w).sum(), len(batch)

        def count(self, batch: Any) -> int:
            return len(batch)

    config = resolve(Two(), "t", {"updates": 1, "batch_size": 2, "microbatch_size": (1,), "max_norm": 1.0})
    with open_engine(Two(), config) as engine, engine.working():
        record = engine.update()
        assert record.grad_norm == 2.5 and record.clipped
        assert engine.state.model.w.detach().tolist() == pytest.approx([-0.6, -0.8], rel=1e-5)


def test_K03_06_batch_statistics_are_taken_per_microbatch_and_resume_exactly() -> None:
    settings = {"n": 16, "batch_size": 4, "microbatch_size": (1,)}
    found = hop(1, 7, **settings)
    assert int(found.states[0]["model"]["state"]["norm.num_batches_tracked"]) == 4
    assert same(hop(7, **settings), found)
    assert int(hop(1, n=16, batch_size=4).final["model"]["state"]["norm.num_batches_tracked"]) == 1


@pytest.mark.parametrize("cut", [(4,), (2,), (1,)])
def test_K03_07_the_loss_is_divided_once(cut: tuple[int, ...]) -> None:
    record, _ = pulled([(1.0, 2), (2.0, 2), (3.0, 2), (4.0, 2)], cut)
    assert record.grad_norm == pytest.approx(2.5, rel=1e-6) and record.loss_count == 8


# --- K04 optimizer state ---------------------------------------------------------------------------------------------


class Pair(Recipe):
    """Two parameters of equal shape with gradients 1 and 5; `swapped` changes their order in the source."""

    name = "pair"

    def __init__(self, swapped: bool = False) -> None:
        self.swapped, self.seen = swapped, []

    def splits(self, config: RunConfig) -> Splits:
        return Splits([torch.ones(1)] * 4)

    def model(self, config: RunConfig) -> nn.Module:
        model = nn.Module()
        for name in ("b", "a") if self.swapped else ("a", "b"):
            setattr(model, name, nn.Parameter(torch.zeros(3)))
        return model

    def optimizer(self, config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=config.rate)

    def objective(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        return (batch.sum() * (model.a.sum() + 5 * model.b.sum())), len(batch)

    def count(self, batch: Any) -> int:
        return len(batch)


def test_K04_01_moments_follow_names() -> None:
    gold = hop(2, make=Pair)
    with open_engine(Pair(swapped=True), resolve(Pair(), "t", {"updates": 3})) as engine:
        engine.restore(gold.final)
        model, moments = engine.state.model, engine.state.optimizer.state
        assert float(moments[model.b]["exp_avg"][0]) == pytest.approx(5 * float(moments[model.a]["exp_avg"][0]))
        engine.run(3)
        ours = engine.capture()["model"]["state"]
    straight_on = hop(2, 3, make=Pair).final["model"]["state"]
    assert all(torch.equal(ours[name], straight_on[name]) for name in ("a", "b"))


VARIANTS = [{"foreach": False}, {"foreach": True}, {"fused": True}, {"capturable": True}]


class Variant(Toy):
    """AdamW in one of torch's variants, with weights of one dtype."""

    def __init__(self, dtype: torch.dtype = torch.float32, **variant: Any) -> None:
        super().__init__()
        self.dtype, self.variant = dtype, variant

    def model(self, config: RunConfig) -> nn.Module:
        return super().model(config).to(self.dtype)

    def collate(self, examples: Sequence[Any]) -> Any:
        indices, features, targets = super().collate(examples)
        return indices, features.to(self.dtype), targets

    def optimizer(self, config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=config.rate, **self.variant)


@pytest.mark.parametrize("variant", VARIANTS[:3], ids=str)
def test_K04_02_step_counts_come_back_with_dtype_and_value(variant: dict[str, Any]) -> None:
    def make() -> Variant:
        return Variant(torch.bfloat16, **variant)

    found = hop(3, 4, make=make)
    counts = [state["step"] for state in found.states[0]["optimizer"]["state"].values()]
    assert all(count.dtype is torch.float32 and count.device.type == "cpu" for count in counts)
    assert same(hop(4, make=make), found)


@pytest.mark.cuda
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_K04_02_step_counts_go_where_each_variant_wants_them_on_cuda(variant: dict[str, Any], cuda: Any) -> None:
    def make() -> Variant:
        return Variant(**variant)

    assert same(hop(4, make=make, device="cuda"), hop(3, 4, make=make, device="cuda"))


def test_K04_03_switching_fused_on_or_off_runs_and_stays_close() -> None:
    plain, fused = {"foreach": False}, {"fused": True}
    gold = hop(4, make=lambda: Variant(**plain)).final["model"]["state"]["last.weight"]
    for first, then in ((plain, fused), (fused, plain)):
        state = hop(3, make=lambda f=first: Variant(**f)).final
        with open_engine(Variant(**then), resolve(Toy(), "t", {"updates": 4})) as engine:
            engine.restore(state)
            engine.run(4)
            torch.testing.assert_close(engine.capture()["model"]["state"]["last.weight"], gold, rtol=0, atol=1e-6)


def test_K04_05_an_update_with_rate_0_leaves_loaded_weights_as_they_are() -> None:
    gold = hop(3)
    with open_engine(Toy(), resolve(Toy(), "t", {"updates": 4, "seed": 0})) as engine:
        engine.restore(gold.final)
        engine.state.optimizer.param_groups[0].update(lr=0.0, weight_decay=0.0)
        with engine.working():
            engine.update()
        assert digests(engine.capture())["parameters"] == digests(gold.final)["parameters"]


def test_K04_06_another_rate_or_decay_is_refused_with_both_values(tmp_path: Path) -> None:
    split(tmp_path / "r", Toy, 3, rate=0.1, weight_decay=0.0)
    with pytest.raises(IdentityError, match="rate is 0.1 in this run, now 0.01"):
        run.resume(tmp_path / "r", recipe=Toy(), rate=0.01)
    with pytest.raises(IdentityError, match="weight_decay is 0.0 in this run, now 0.3"):
        run.resume(tmp_path / "r", recipe=Toy(), weight_decay="0.3")


class Thawing(Toy):
    """The first layer is frozen for six updates; with `group`, it joins the optimizer as a group of its own then."""

    group = False

    def model(self, config: RunConfig) -> nn.Module:
        model = super().model(config)
        model.first.requires_grad_(False)
        return model

    def optimizer(self, config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
        chosen = [p for p in model.parameters() if p.requires_grad or not self.group]
        self.made = torch.optim.AdamW(chosen, lr=config.rate)
        return self.made

    def objective(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        if model.training and int(model.forwards) == 6 and not model.first.weight.requires_grad:
            model.first.requires_grad_(True)
            if self.group:
                self.made.add_param_group({"params": list(model.first.parameters()), "lr": 0.1})
        return super().objective(model, batch)


def test_K04_07_layers_that_were_thawed_stay_thawed() -> None:
    gold, found = hop(12, make=Thawing), hop(8, 12, make=Thawing)
    assert same(gold, found) and found.final["model"]["trainable"]["first.weight"]
    weights = [state["model"]["state"]["first.weight"] for state in found.states]
    assert not torch.equal(*weights)


def test_K04_07_a_group_that_is_added_on_the_way_is_refused_at_once() -> None:
    class Grouping(Thawing):
        group = True

    with pytest.raises(RecipeError, match="2 parameter groups.*1 when"):
        hop(8, make=Grouping)


def test_K04_08_the_state_of_another_optimizer_is_refused_with_both_names(tmp_path: Path) -> None:
    class Sgd(Toy):
        def optimizer(self, config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    split(tmp_path / "r", Toy, 3)
    before = contents(tmp_path / "r")
    with pytest.raises(StateError, match="AdamW.*SGD"):
        run.resume(tmp_path / "r", recipe=Sgd())
    assert contents(tmp_path / "r") == before


# --- K05 weight average ----------------------------------------------------------------------------------------------

AVERAGED: dict[str, Any] = {"ema_decay": 0.9, "eval_every": 2, "eval_weights": "ema"}


def test_K05_01_raw_and_averaged_weights_are_both_restored() -> None:
    gold = hop(10, **AVERAGED)
    for stop in range(1, 10):
        assert same(gold, hop(stop, 10, **AVERAGED))
    state = hop(5, **AVERAGED).final
    assert not torch.equal(state["ema"]["average"]["first.weight"], state["model"]["state"]["first.weight"])


def test_K05_02_the_count_of_the_warm_up_is_restored() -> None:
    settings = {"ema_decay": 0.9999, "ema_warmup": True, "rate": 1e-4, "dropout": 0.0}
    found = hop(60, 61, **settings)
    assert [state["ema"]["count"] for state in found.states] == [60, 61]
    assert same(hop(61, **settings), found)
    before, after = (state["ema"]["average"]["first.weight"] for state in found.states)
    gap = found.final["model"]["state"]["first.weight"] - before
    moved, wide = float((after - before).abs().max()), float(gap.abs().max())
    assert moved < 0.2 * wide  # 1 - 61 / 70: 13 % of the gap; a count of 0 would move 90 %


def test_K05_03_nothing_is_saved_while_the_average_is_in_the_model(tmp_path: Path) -> None:
    class Saving(Toy):
        session: Session | None = None
        fail = True

        def metrics(self, model: nn.Module, batch: Any) -> Any:
            if self.session is not None and self.session.update == 6:
                if self.fail:
                    self.fail = False
                    raise ZeroDivisionError("mine")
                with pytest.raises(LabkitError, match="average"):
                    self.session.publish()
            return super().metrics(model, batch)

    recipe = Saving()
    with run.start(recipe, tmp_path / "r", updates=8, **AVERAGED) as session:
        recipe.session = session
        with pytest.raises(ZeroDivisionError):
            session.train()
        raw = digests(session.capture())["parameters"]
        assert raw == digests(straight(Toy, 6, **AVERAGED)[0])["parameters"]
        session.train()
        final = session.capture()
    assert digests(final)["parameters"] == digests(straight(Toy, 8, **AVERAGED)[0])["parameters"]


def test_K05_04_saving_changes_nothing_in_memory(tmp_path: Path) -> None:
    finals = []
    for every in (0, 1, 5):
        with run.start(Toy(), tmp_path / str(every), updates=8, save_every=every, **AVERAGED) as session:
            session.train()
            before = session.capture()
            session.publish()
            assert differing(before, session.capture()) == []
            finals.append(before)
    assert differing(finals[0], finals[1]) == differing(finals[0], finals[2]) == []


@pytest.mark.parametrize("buffers", ["copy", "average", "recompute"])
def test_K05_05_integer_buffers_of_the_average_are_those_of_the_model(buffers: str) -> None:
    final = hop(3, **AVERAGED, ema_buffers=buffers).final
    average, model = final["ema"]["average"], final["model"]["state"]
    assert int(average["norm.num_batches_tracked"]) == int(model["norm.num_batches_tracked"]) == 3
    assert torch.isfinite(average["norm.running_mean"]).all()
    assert torch.equal(average["norm.running_mean"], model["norm.running_mean"]) == (buffers != "average")


def test_K05_08_the_average_moves_with_every_committed_update() -> None:
    recipe = Pull([(1.0, 1)] * 4)
    with open_engine(recipe, resolve(recipe, "t", {"updates": 3, "ema_decay": 0.5})) as engine:
        values = []
        for update in (1, 2, 3):
            engine.run(update)
            assert engine.state.ema is not None and engine.state.ema.count == engine.state.counters.committed
            values.append(float(engine.state.ema.state_dict()["average"]["w"]))
    assert values == [-0.5, -1.25, -2.125]


# --- K06 scaler, clipping, nonfinite gradients -----------------------------------------------------------------------

SCALED: dict[str, Any] = {"precision": "fp16", "initial_scale": 8.0, "growth_interval": 2}


def test_K06_01_the_growth_counter_is_restored() -> None:
    found = hop(1, 2, **SCALED)
    assert (found.states[0]["scaler"]["scale"], found.states[0]["scaler"]["growth_tracker"]) == (8.0, 1)
    assert found.final["scaler"]["scale"] == 16.0


@pytest.mark.parametrize("again", [{}, SCALED], ids=["as it is", "the same words again"])
def test_K06_02_a_restored_scaler_is_there_before_any_training(again: dict[str, Any], tmp_path: Path) -> None:
    gold = split(tmp_path / "r", Toy, 3, **SCALED)
    with run.resume(tmp_path / "r", recipe=Toy(), updates=9, **again) as session:
        assert session.state.precision.state_dict() == gold["scaler"] != hop(0, **SCALED).final["scaler"]


def test_K06_03_loading_is_a_round_trip_for_every_part() -> None:
    settings = {**SCALED, **AVERAGED, "schedule": "cosine", "horizon": 9}
    gold = hop(3, **settings).final
    with open_engine(Toy(), resolve(Toy(), "t", {"updates": 9, **settings})) as engine:
        for _ in range(2):
            engine.restore(gold)
            assert differing(gold, engine.capture()) == []


@pytest.mark.parametrize("scale", [1.0, 1024.0, 65536.0])
def test_K06_04_gradients_are_unscaled_before_they_are_measured_and_clipped(scale: float) -> None:
    record, weight = pulled([(0.5, 1)], (), precision="fp16", initial_scale=scale, max_norm=1.0)
    assert record.grad_norm == 0.5 and weight == -0.5 and not record.clipped
    record, weight = pulled([(2.0, 1)], (), precision="fp16", initial_scale=scale, max_norm=1.0)
    assert record.grad_norm == 2.0 and weight == pytest.approx(-1.0, rel=1e-5) and record.clipped


class Poisoned(Toy):
    """The gradient of the attempts from..to is not a number."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self.first, self.last = first, last

    def objective(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        summed, count = super().objective(model, batch)
        if model.training and self.first <= len(self.seen) <= self.last:
            summed = summed + (model.first.bias * 0).sum().abs().sqrt()
        return summed, count


def test_K06_06_a_nonfinite_gradient_moves_nothing_and_healthy_files_stay(tmp_path: Path) -> None:
    config = resolve(Toy(), "t", {"updates": 19, "on_nonfinite": "skip", "max_norm": 1.0})
    with open_engine(Poisoned(5, 5), config) as engine:
        engine.run(19)
        counters = engine.state.counters
        assert (counters.attempted, counters.committed, counters.skipped) == (20, 19, 1)
        assert all(torch.isfinite(p).all() for p in engine.state.model.parameters())
    settings = {"updates": 20, "on_nonfinite": "skip", "max_skips": 3, "save_every": 1, "keep": 3}
    with run.start(Poisoned(5, 99), tmp_path / "r", **settings) as session:
        with pytest.raises(NonfiniteError, match="4 attempts in a row"):
            session.train()
    with run.resume(tmp_path / "r", recipe=Toy()) as session:
        assert session.update == 4 and torch.isfinite(session.state.model.last.weight).all()
    with pytest.raises(NonfiniteError):
        clip_([torch.tensor([math.inf, 1.0])], gradient_norm([torch.tensor([math.inf, 1.0])]), 1.0)


# --- K07 random generators -------------------------------------------------------------------------------------------


class Drawn(Toy):
    """Keeps what the transform drew for each example: its features minus those of the data."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[tuple[int, float]] = []
        self.plain = Items(12).features

    def objective(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        indices, features, _ = batch
        if model.training:
            self.drawn += [(int(i), float(f[0] - self.plain[i][0])) for i, f in zip(indices, features, strict=True)]
        return super().objective(model, batch)


def draws(*stops: int, **settings: Any) -> list[tuple[int, float]]:
    recipes: list[Drawn] = []

    def make() -> Drawn:
        recipes.append(Drawn())
        return recipes[-1]

    hop(*stops, make=make, jitter=True, **settings)
    return [pair for recipe in recipes for pair in recipe.drawn]


@pytest.mark.parametrize("workers", [2, 4])
def test_K07_01_every_example_draws_numbers_of_its_own(workers: int) -> None:
    alone, many = draws(6), draws(6, workers=workers, start_method="fork")
    assert alone == many and len({value for _, value in many}) == 12

    class Keeping(Toy):
        def splits(self, config: RunConfig) -> Splits:
            items = Items(12)
            items.rng = np.random.default_rng(0)  # type: ignore[attr-defined]
            return Splits(items)

    with pytest.raises(DataError, match="dataset.rng"):
        open_engine(Keeping(), resolve(Keeping(), "t", {"updates": 3, "workers": workers}))


def test_K07_02_every_epoch_draws_anew_and_repeatably() -> None:
    found = [value for index, value in draws(30) if index == 3]
    assert len(set(found)) == 5
    assert found == [value for index, value in draws(30) if index == 3]
    assert found == [value for index, value in draws(15, 30) if index == 3]


@pytest.mark.parametrize("persistent", [True, False])
def test_K07_03_the_epoch_travels_with_each_request(persistent: bool) -> None:
    assert draws(18, workers=1, start_method="fork", persistent_workers=persistent) == draws(18)


def test_K07_04_the_number_of_workers_may_change_at_a_resume() -> None:
    gold = hop(12, jitter=True)
    state: Saved | None = None
    for stop, workers in ((4, 0), (8, 2), (12, 1)):
        settings = {"updates": 12, "jitter": True, "workers": workers, "start_method": "fork"}
        with open_engine(Toy(), resolve(Toy(), "t", settings)) as engine:
            if state is not None:
                engine.restore(state)
            engine.run(stop)
            state = engine.capture()
    assert state is not None and differing(gold.final, state) == []


def test_K07_05_a_file_with_eight_devices_is_refused_with_both_numbers() -> None:
    forged = {**hop(3).final}
    forged["rng"] = {**forged["rng"], "cuda": {n: torch.zeros(16, dtype=torch.uint8) for n in range(8)}}
    with open_engine(Toy(), resolve(Toy(), "t", {"updates": 9})) as engine:
        before = engine.capture()
        with pytest.raises(LabkitError, match=r"8 CUDA devices.*the 0 in use"):
            engine.restore(forged)
        assert differing(before, engine.capture()) == []


@pytest.mark.cuda
@pytest.mark.parametrize("where", ["cpu", "cuda:0"])
def test_K07_06_generator_states_go_through_the_cpu(where: str, cuda: Any) -> None:
    saved = randomness.capture({}, [cuda])
    wanted = torch.rand(3), torch.rand(3, device=cuda)
    moved = {**saved, "torch": saved["torch"].to(where), "cuda": {0: saved["cuda"][0].to(where)}}
    randomness.restore(moved, {}, [cuda])
    assert torch.equal(torch.rand(3), wanted[0]) and torch.equal(torch.rand(3, device=cuda), wanted[1])


def test_K07_07_a_missing_stream_is_refused_by_name() -> None:
    class Own(Toy):
        def generators(self) -> dict[str, Any]:
            return {"mine": torch.Generator().manual_seed(1), "yours": np.random.default_rng(1)}

    gold = hop(3, make=Own).final
    with open_engine(Own(), resolve(Own(), "t", {"updates": 9})) as engine:
        for stream in ("python", "numpy", "torch", "cuda", "generators"):
            broken = {**gold, "rng": {name: value for name, value in gold["rng"].items() if name != stream}}
            with pytest.raises(LabkitError, match=stream):
                engine.restore(broken)
        for name in ("mine", "yours"):
            left = {own: value for own, value in gold["rng"]["generators"].items() if own != name}
            with pytest.raises(LabkitError, match=name):
                engine.restore({**gold, "rng": {**gold["rng"], "generators": left}})
        engine.restore(gold)
        assert differing(gold, engine.capture()) == []


# --- K10 early stopping and best -------------------------------------------------------------------------------------


def watch(folder: Path, values: Sequence[float], *stops: int, **settings: Any) -> tuple[int, Best, str]:
    """Evaluations with these values after updates 1, 2, ...; stopped at each of stops, then run to the end."""
    given = {"script": ",".join(map(str, values)), "updates": len(values), **settings}
    first, *rest = [*stops, len(values)]
    with run.start(Watched(), folder, **{**given, "updates": first}) as session:
        outcome = session.train()
    for stop in rest:
        with run.resume(folder, recipe=Watched(), updates=stop) as session:
            outcome = session.train()
    return session.update, session.state.best, outcome.status


@pytest.mark.parametrize("stops", [(), (1,), (2,), (3,), (1, 2, 3)])
def test_K10_01_patience_goes_on_after_a_restart(stops: tuple[int, ...], tmp_path: Path) -> None:
    update, best, status = watch(tmp_path / "r", [1.0, 1.1, 1.2, 1.3, 0.1], *stops, patience=3)
    assert (update, best.update, best.value, status) == (4, 1, 1.0, "early stopped")


def test_K10_02_a_file_holds_the_decision_of_its_own_evaluation(tmp_path: Path) -> None:
    watch(tmp_path / "r", [1.0, 1.1, 1.2], save_every=1, keep=5)
    waits = []
    for update in (1, 2, 3):
        manifest = tmp_path / "r" / "checkpoints" / f"update-{update:09d}" / "manifest.json"
        waits.append(json.loads(manifest.read_text())["facts"]["best"]["without_improvement"])
    assert waits == [0, 1, 2]


def test_K10_03_nan_is_never_best_costs_patience_and_is_recorded(tmp_path: Path) -> None:
    update, best, status = watch(tmp_path / "r", [1.0, math.nan, math.nan, math.nan, 0.5], patience=3)
    assert (update, best.update, status) == (4, 1, "early stopped")
    lines = [line for line in read_lines(tmp_path / "r" / "trajectory.jsonl").records if "validation" in line]
    assert [line["best"] for line in lines] == [True, False, False, False]
    assert math.isnan(lines[1]["validation"]["scripted"][0])
    assert (tmp_path / "r" / "checkpoints" / "update-000000001").is_dir()
    assert watch(tmp_path / "s", [1.0, math.nan, 0.9])[1].update == 3


@pytest.mark.parametrize(("first", "mode"), [(math.nan, "min"), (math.inf, "min"), (-math.inf, "max")])
def test_K10_04_a_nonfinite_first_value_blocks_nothing(first: float, mode: str) -> None:
    best, config = Best(), RunConfig(recipe="d", metric="m", mode=mode)
    values = [first, 1.0, 0.8 if mode == "min" else 1.2]
    assert [decide(best, config, {"m": Total(v, 1)}, n) for n, v in enumerate(values)] == [False, True, True]


def test_K10_05_a_best_value_of_zero_is_a_value(tmp_path: Path) -> None:
    assert watch(tmp_path / "a", [0.0, 0.3], 1)[1].value == 0.0
    assert watch(tmp_path / "b", [0.0, -0.5], 1, mode="max")[1].value == 0.0
    gold = hop(2, make=Watched, script="0.0,0.3").final
    broken = {**gold, "best": {"update": 1, "without_improvement": 0}}
    with open_engine(Watched(), resolve(Watched(), "t", {"updates": 9, "script": "0.0,0.3"})) as engine:
        with pytest.raises(StateError, match="best"):
            engine.restore(broken)  # an old file without the value makes up none


def test_K10_06_the_direction_is_given_never_guessed(tmp_path: Path) -> None:
    update, best, status = watch(tmp_path / "r", [0.5, 0.6, 0.7, 0.8], mode="max", patience=2)
    assert (update, best.update, status) == (4, 4, "finished")
    for metric in ("accuracy", "mape", "map"):
        with pytest.raises(ConfigError, match="direction"):
            RunConfig(recipe="d", metric=metric, eval_every=1)
    with pytest.raises(IdentityError, match="mode is 'max' in this run, now 'min'"):
        run.resume(tmp_path / "r", recipe=Watched(), mode="min")


def test_K10_08_an_improvement_resets_the_counter(tmp_path: Path) -> None:
    assert watch(tmp_path / "a", [1.0, 1.1, 0.9, 1.0, 0.8, 0.9, 0.7], patience=2)[2] == "finished"
    assert watch(tmp_path / "b", [1.0, 1.1, 0.9, 0.1], patience=2, min_improvement=0.15)[::2] == (3, "early stopped")


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_K10_09_the_decision_is_made_from_saved_counters_each_time(stop: int, tmp_path: Path) -> None:
    values = [1.0, 1.1, 0.9, 1.0, 1.1, 0.7]
    assert watch(tmp_path / "a", values, patience=2)[0] == watch(tmp_path / "b", values, stop, patience=2)[0] == 5
    with run.resume(tmp_path / "b", recipe=Watched()) as session:
        assert session.train().status == "early stopped" and session.update == 5


# --- K11 evaluation --------------------------------------------------------------------------------------------------


class Losses(Toy):
    """The loss of validation example i is values[i]."""

    def __init__(self, values: Sequence[float]) -> None:
        super().__init__()
        self.values = torch.tensor(values, dtype=torch.float64)

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, tuple[Tensor | float, int]]:
        return {"loss": (self.values[batch[0]].sum(), len(batch[0]))}


def scored(values: Sequence[float], batch_size: int, order: Sequence[int] | None = None) -> Total:
    data: Any = Items(len(values))
    if order is not None:
        data = torch.utils.data.Subset(data, order)
    found = evaluate(nn.Linear(1, 1), Losses(values), data, batch_size=batch_size)
    assert found is not None
    return found["loss"]


def test_K11_01_the_mean_is_over_examples() -> None:
    values = [1.0] * 8 + [5.0] * 2
    assert all(scored(values, size).mean == pytest.approx(1.8, abs=1e-12) for size in (1, 3, 4, 10))


def test_K11_02_perplexity_comes_from_the_total() -> None:
    assert perplexity(scored([1.0] * 8 + [5.0] * 2, 4)) == pytest.approx(6.05, abs=0.01)


def test_K11_03_all_batches_count_in_any_order() -> None:
    values = [1.0, 1, 1, 1, 9, 9]
    assert scored(values, 2).mean == pytest.approx(3.667, abs=1e-3) and scored(values, 2).count == 6
    assert scored(values, 2, [5, 0, 3, 4, 1, 2]) == scored(values, 2)


def test_K11_04_every_module_is_put_back_into_its_own_mode() -> None:
    class Frozen(Toy):
        def model(self, config: RunConfig) -> nn.Module:
            model = super().model(config)
            model.norm.eval()
            return model

    gold, found = hop(10, make=Frozen), hop(10, make=Frozen, eval_every=3)
    assert gold.final["model"]["training"] == found.final["model"]["training"] != {}
    assert not found.final["model"]["training"]["norm"] and found.final["model"]["training"]["drop"]
    assert gold.records == found.records


def test_K11_05_evaluation_is_deterministic_and_draws_nothing() -> None:
    before = randomness.capture()
    with open_engine(Toy(), resolve(Toy(), "t", {"updates": 1, "dropout": 0.5})) as engine:
        model, data = engine.state.model, engine.parts.splits.validation
        assert evaluate(model, Toy(), data) == evaluate(model, Toy(), data)
    assert randomness.differences(before, randomness.capture()) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_K11_06_how_often_one_evaluates_does_not_matter(workers: int) -> None:
    found = [hop(8, eval_every=every, workers=workers, start_method="fork") for every in (0, 1, 3)]
    assert found[0].seen == found[1].seen == found[2].seen
    assert found[0].records == found[1].records == found[2].records


def test_K11_08_evaluation_leaves_batch_statistics_alone() -> None:
    with open_engine(Toy(), resolve(Toy(), "t", {"updates": 3, "eval_every": 3})) as engine:
        with engine.working():
            for _ in range(3):
                engine.update()
        before = digests(engine.capture())["buffers"]
        with engine.working():
            engine.evaluate_if_due()
        assert digests(engine.capture())["buffers"] == before


def test_K11_09_previews_and_observers_may_seed_and_draw(tmp_path: Path) -> None:
    class Previewing(Toy):
        def samples(self, model: nn.Module, config: RunConfig) -> Any:
            torch.manual_seed(0)
            return [{"prompt": "", "output": float(torch.rand(()))}]

    gold = straight(Toy, 8)[0]
    with run.start(Previewing(), tmp_path / "r", updates=8, eval_every=2, samples_every=1) as session:
        session.observers.append(lambda record: torch.manual_seed(0) if record.update % 2 else torch.rand(1000))
        session.train()
        parts = ("parameters", "buffers", "rng.torch", "rng.numpy", "rng.python", "optimizer.exp_avg")
        ours, theirs = digests(session.capture()), digests(gold)
        assert [ours[part] for part in parts] == [theirs[part] for part in parts]


def test_K11_10_dropout_that_ignores_the_mode_is_said(tmp_path: Path) -> None:
    class Careless(Toy):
        def metrics(self, model: nn.Module, batch: Any) -> Any:
            errors = nn.functional.dropout(batch[1], 0.5).sum(-1) ** 2  # training=True is its default
            return {"loss": (errors.sum(), len(errors))}

    with run.start(Careless(), tmp_path / "r", updates=3, eval_every=1) as session:
        assert any("eval mode is random" in text for text in session.notices)
    with run.start(Toy(), tmp_path / "s", updates=3, eval_every=1) as session:
        assert not any("random" in text for text in session.notices)


def test_the_scaler_and_the_ledger_agree(tmp_path: Path) -> None:
    """What was counted is what was recorded, over a stop and with skips."""
    final = split(tmp_path / "r", Toy, 4, 9, precision="fp16", initial_scale=2.0**24, growth_interval=2)
    lines = read_lines(tmp_path / "r" / "trajectory.jsonl").records
    skipped = [line for line in lines if line["skipped"]]
    assert len(skipped) == final["counters"]["scaler_skipped"] > 0
    assert len(lines) == final["counters"]["attempted"] and lines[-1]["update"] == 9
    ended = read_attempts(tmp_path / "r")[-1].end["measured"]
    assert ended["scaler_skipped"] == len(skipped) and ended["examples"] == final["counters"]["examples"] == 18
    assert Precision("fp32", torch.device("cpu")).current_scale is None
