"""loop.py against a loop written by hand, bit for bit over every update, and the guard in front of the optimizer."""

from __future__ import annotations

import math

import pytest
import torch
from oracle import HandWritten

from labkit import randomness
from labkit.build import build
from labkit.engine import Engine, open_engine
from labkit.errors import NonfiniteError, RecipeError, TornStateError
from labkit.order import EpochOrder
from labkit.recipe import resolve
from labkit.recipes import find
from labkit.recipes.digits import Digits, load
from labkit.state import digests

COMPARED = (
    "update", "epoch", "cursor", "indices", "loss_sum", "loss_count", "grad_norm", "clipped", "update_norm",
)  # fmt: skip
SETTINGS = {"warmup": 5, "max_norm": 0.3, "ema_decay": 0.9, "norm_every": 3}


def config_for(**settings):
    return resolve(find("digits"), "digits", {"updates": 45, **settings})


def by_hand(config):
    """The hand-written loop over the network that labkit builds, under the streams that labkit starts with."""
    randomness.seed_all("build", config.seed)
    model = Digits().model(config)
    randomness.seed_all("train", config.seed)
    data = load("train")
    return HandWritten(
        model, data.images, data.labels, EpochOrder(config.order, config.seed, len(data)), rate=config.rate,
        weight_decay=config.weight_decay, warmup=config.warmup, max_norm=config.max_norm, decay=config.ema_decay,
        batch_size=config.batch_size, norm_every=config.norm_every, path=None, cut=config.microbatch_size,
    )  # fmt: skip


@pytest.mark.parametrize("cut", [(), (20,), (30, 7, 1)], ids=["whole", "20", "uneven"])
@pytest.mark.parametrize("network", ["mlp", "conv"])
def test_every_update_equals_the_hand_written_loop_in_every_bit(network, cut):
    config = config_for(network=network, microbatch_size=cut, **SETTINGS)
    hand = by_hand(config)
    expected = [hand.update() for _ in range(45)]  # two epochs and a bit, with their short last updates
    with open_engine(Digits(), config) as engine:
        records = []
        engine.run(45, records.append)
        for record, wanted in zip(records, expected, strict=True):
            assert {n: getattr(record, n) for n in COMPARED} == {n: wanted[n] for n in COMPARED}
            assert list(record.rates_used) == wanted["rates_used"] and list(record.rates_next) == wanted["rates_next"]
        assert any(record.clipped for record in records)
        for own, other in zip(engine.state.model.parameters(), hand.parameters, strict=True):
            assert torch.equal(own, other)
        average = engine.state.ema.state_dict()["average"]
        for (name, _), other in zip(engine.state.model.named_parameters(), hand.average, strict=True):
            assert torch.equal(average[name], other)


class Poisoned(Digits):
    """Digits whose loss is infinite or nan at one attempt."""

    def __init__(self, at, value):
        self.at, self.value, self.seen = at, value, 0

    def objective(self, model, batch):
        summed, count = super().objective(model, batch)
        self.seen += 1
        return (summed * self.value, count) if self.seen == self.at else (summed, count)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("network", ["mlp", "conv"])
def test_a_refused_attempt_moves_only_cursor_counters_and_streams(network, value):
    config = config_for(network=network, on_nonfinite="skip", **SETTINGS)
    with open_engine(Poisoned(4, value), config) as engine:
        engine.run(3)
        before = digests(engine.capture())
        with engine.working():
            record = engine.update()
        after = digests(engine.capture())
        moved = {name for name in before if before[name] != after[name]}
        assert record.skipped is not None and "loss" in record.skipped
        allowed = {"counters.attempted", "counters.skipped", "counters.skips_in_a_row", "cursor.examples", "rng.torch"}
        assert moved <= allowed
        assert {"counters.attempted", "counters.skipped", "cursor.examples"} <= moved
        engine.run(6)
        assert engine.state.counters.skipped == 1 and engine.state.counters.skips_in_a_row == 0


def test_a_nonfinite_gradient_under_a_finite_loss_is_refused_and_named():
    class RootAtZero(Digits):
        def objective(self, model, batch):
            summed, count = super().objective(model, batch)
            return summed + (model[1].weight.sum() * 0).abs().sqrt(), count  # value 0, derivative nan

    with open_engine(RootAtZero(), config_for(on_nonfinite="skip", max_skips=0)) as engine:
        with pytest.raises(NonfiniteError, match=r"gradient of 1\.weight"):
            engine.run(1)
        assert engine.state.counters.committed == 0


def test_skips_in_a_row_have_a_cap():
    class Broken(Digits):
        def objective(self, model, batch):
            summed, count = super().objective(model, batch)
            return summed * math.nan, count

    with open_engine(Broken(), config_for(on_nonfinite="skip", max_skips=3)) as engine:
        with pytest.raises(NonfiniteError, match="4 attempts in a row"):
            engine.run(10)
        assert engine.state.counters.attempted == 4


def test_raise_leaves_torn_objects_that_refuse_to_go_on():
    with open_engine(Poisoned(3, math.nan), config_for()) as engine:
        with pytest.raises(NonfiniteError, match="attempt 3"):
            engine.run(10)
        with pytest.raises(TornStateError, match="resume"), engine.working():
            engine.update()


def test_an_error_in_the_users_code_leaves_torn_objects_until_a_state_is_restored():
    class Failing(Digits):
        fail = False

        def objective(self, model, batch):
            if self.fail:
                raise ZeroDivisionError("mine")
            return super().objective(model, batch)

    recipe = Failing()
    with open_engine(recipe, config_for()) as engine:
        engine.run(2)
        saved = engine.capture()
        recipe.fail = True
        with pytest.raises(ZeroDivisionError):
            engine.run(4)
        recipe.fail = False
        with pytest.raises(TornStateError):
            engine.run(4)
        engine.restore(saved)
        engine.run(4)
        straight = open_engine(Failing(), config_for())
        straight.run(4)
        assert digests(straight.capture()) == digests(engine.capture())


def test_an_objective_that_counts_otherwise_than_count_is_refused():
    class Miscounting(Digits):
        def objective(self, model, batch):
            summed, count = super().objective(model, batch)
            return summed, count + 1

    with open_engine(Miscounting(), config_for()) as engine, pytest.raises(RecipeError, match="65.*64"):
        engine.run(1)


class Letters(Digits):
    """Digits of which some classes count as padding, so that a microbatch or an update may hold no valid target."""

    def __init__(self, valid):
        self.valid = valid

    def count(self, batch):
        return int((batch[1] < self.valid).sum())

    def objective(self, model, batch):
        images, labels = batch
        mask = labels < self.valid
        if not mask.any():
            return torch.tensor(math.nan), 0  # must never be asked for
        loss = torch.nn.functional.cross_entropy(model(images), labels, reduction="none")
        return (loss * mask).sum(), int(mask.sum())


def test_an_update_without_valid_targets_is_a_recorded_no_op():
    with open_engine(Letters(0), config_for(**SETTINGS)) as engine:
        before = digests(engine.capture())
        with engine.working():
            record = engine.update()
        after = digests(engine.capture())
        assert record.skipped == "no valid targets" and record.loss_count == 0 and record.update == 0
        moved = {name for name in before if before[name] != after[name]}
        assert moved == {"counters.attempted", "counters.empty", "cursor.examples"}


def test_microbatches_without_valid_targets_add_nothing():
    config = config_for(microbatch_size=(1,), batch_size=8)
    with open_engine(Letters(3), config) as engine:
        records = []
        engine.run(5, records.append)
        assert all(0 < r.loss_count < 8 and math.isfinite(r.loss_sum) for r in records)


@pytest.mark.parametrize("cut", [(), (1,), (3,), (5, 2), (7, 1)])
def test_any_partition_gives_the_same_gradient_to_float64_rounding(cut):
    """No dropout, float64: sums of 64 terms in another order differ by at most a few units in the last place."""

    class Double(Digits):
        def model(self, config):
            return super().model(config).double().eval()

        def collate(self, examples):
            images, labels = super().collate(examples)
            return images.double(), labels

    norms = []
    for pieces in ((), cut):
        parts = build(Double(), config_for(microbatch_size=pieces, max_norm=None))
        with Engine(parts) as engine, engine.working():
            norms.append([engine.update() for _ in range(21)])
    for one, other in zip(*norms, strict=True):
        assert one.indices == other.indices
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-9)
        assert one.loss_sum == pytest.approx(other.loss_sum, rel=1e-9)


def test_two_engines_in_one_process_do_not_disturb_each_other_nor_the_caller():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    with open_engine(Digits(), config_for()) as one, open_engine(Digits(), config_for(seed=1)) as two:
        for updates in range(1, 6):
            one.run(updates)
            two.run(updates)
            randomness.seed_all("noise", updates)
        torch.manual_seed(5)
        one.run(7)
        assert torch.equal(torch.rand(3), wanted)
        alone = open_engine(Digits(), config_for())
        alone.run(7)
        assert digests(alone.capture()) == digests(one.capture())
