"""Promises of labkit.ema."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from labkit.ema import Ema, recompute_batchnorm
from labkit.errors import EmaError, StateError


class Net(nn.Module):
    """Every kind of tensor: weights, a tied weight, BatchNorm floats and counter, integers, a buffer nobody saves."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Dropout(0.5)
        self.b.weight = self.a.weight
        self.frozen = nn.Parameter(torch.randn(2), requires_grad=False)
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.register_buffer("nothing", None)

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1  # buffers are often replaced like this, not changed in place
        self.scratch = self.scratch + 1.0
        out: Tensor = self.b(self.drop(self.norm(self.a(x))))
        return out


def everything(model: nn.Module) -> dict[str, Tensor]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Equal in every bit: torch.equal takes 0.0 for -0.0 and no NaN for itself."""
    return a.keys() == b.keys() and all(
        a[name].reshape(-1).view(torch.uint8).equal(b[name].reshape(-1).view(torch.uint8)) for name in a
    )


def train(model: nn.Module, updates: int, seed: int = 0) -> Iterator[None]:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for _ in range(updates):
        optimizer.zero_grad()
        model(torch.randn(8, 4, generator=generator)).square().sum().backward()
        optimizer.step()
        yield


def average(ema: Ema) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in ema.state_dict()["average"].items()}


def test_it_starts_as_a_copy_that_shares_no_memory() -> None:
    model = Net()
    ema = Ema(model, 0.9)
    start = everything(model)
    for _ in train(model, 2):
        pass
    held = average(ema)
    assert "scratch" not in held and "b.weight" not in held
    assert all(torch.equal(held[name], start[name]) for name in held) and ema.count == 0
    assert not torch.equal(held["a.weight"], model.a.weight)


@pytest.mark.parametrize("decay", [0.0, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_it_is_torchs_averaged_model_bit_for_bit(decay: float, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).to(dtype)
    ema, theirs = Ema(model, decay), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    theirs.update_parameters(model)  # torch's first call copies: it primes
    for n in range(20):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p))
        ema.update(model)
        theirs.update_parameters(model)
        assert same(average(ema), everything(theirs.module))
        assert ema.count == n + 1 == int(theirs.n_averaged) - 1


def test_k05_08_old_two_new_four_gives_two_point_two_and_every_update_counts() -> None:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(2.0)
    ema = Ema(model, 0.9)
    with torch.no_grad():
        model.weight.fill_(4.0)
    ema.update(model)
    assert average(ema)["weight"].item() == pytest.approx(2.2) and model.weight.item() == 4.0

    with torch.no_grad():
        model.weight.zero_()
    halves, seen = Ema(model, 0.5), []
    for _ in range(3):
        with torch.no_grad():
            model.weight -= 1.0
        halves.update(model)
        seen.append(average(halves)["weight"].item())
    assert seen == [-0.5, -1.25, -2.125] and halves.count == 3


def test_k05_02_warmup_follows_the_saved_count() -> None:
    ema = Ema(nn.Linear(1, 1), 0.9999, warmup=True)
    assert [ema.decay_at(n) for n in (0, 1, 1000)] == [0.1, 2 / 11, 1001 / 1010]
    assert ema.decay_at(10**6) == 0.9999 and Ema(nn.Linear(1, 1), 0.5).decay_at(0) == 0.5
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    state = {**Ema(model, 0.9999, warmup=True).state_dict(), "count": 1000, "average": {"weight": torch.zeros(1, 1)}}
    resumed = Ema(model, 0.1)  # other settings: what was saved must win
    resumed.load_state_dict(state)
    resumed.update(model)
    assert 0.0 < average(resumed)["weight"].item() < 0.01 and resumed.count == 1001


def test_the_first_update_under_warmup_uses_one_tenth() -> None:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
    ema = Ema(model, 0.999, warmup=True)
    with torch.no_grad():
        model.weight.fill_(1.0)
    ema.update(model)
    assert average(ema)["weight"].item() == pytest.approx(0.9)


@pytest.mark.parametrize("buffers", ["copy", "average", "recompute"])
def test_k05_05_integers_are_copied_and_floats_follow_the_stated_rule(buffers: Any) -> None:
    model = Net()
    ema, mean = Ema(model, 0.9, buffers=buffers), model.norm.running_mean.clone()
    for _ in train(model, 3):
        ema.update(model)
        mean = mean.lerp(model.norm.running_mean, 1 - 0.9)
    held = average(ema)
    assert held["norm.num_batches_tracked"].item() == 3 == held["calls"].item()
    assert held["calls"].dtype == torch.int64
    assert torch.equal(held["norm.running_mean"], mean if buffers == "average" else model.norm.running_mean)
    assert not torch.equal(mean, model.norm.running_mean)


def test_frozen_and_replaced_parameters_are_followed() -> None:
    model = Net()
    ema = Ema(model, 0.0)
    model.frozen = nn.Parameter(torch.full((2,), 7.0))
    ema.update(model)
    assert average(ema)["frozen"].tolist() == [7.0, 7.0]


def test_the_average_has_no_graph_and_the_model_keeps_its_own() -> None:
    model = Net()
    ema = Ema(model, 0.9)
    ema.update(model)
    assert not any(t.requires_grad or t.grad_fn for t in ema.state_dict()["average"].values())
    assert model.a.weight.requires_grad


def test_an_update_changes_no_bit_of_the_model() -> None:
    model = Net()
    ema = Ema(model, 0.9)
    for _ in train(model, 1):
        pass
    before = everything(model)
    ema.update(model)
    assert same(everything(model), before)


def _trained(**settings: Any) -> tuple[Net, Ema]:
    model = Net()
    ema = Ema(model, 0.9, **settings)
    for _ in train(model, 3):
        ema.update(model)
    with torch.no_grad():
        model.frozen.copy_(torch.tensor([-0.0, float("nan")]))  # bits that a detour through arithmetic would lose
    return model, ema


def test_lent_to_carries_the_average_and_gives_back_every_bit() -> None:
    model, ema = _trained()
    own, held = everything(model), average(ema)
    with ema.lent_to(model) as carrier:
        assert carrier is model and ema.lent
        carried = everything(model)
        assert same({name: carried[name] for name in held}, held)
        assert torch.equal(model.a.weight, model.b.weight)
        model.train()(torch.randn(4, 4))  # moves and replaces buffers
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
    assert same(everything(model), own) and same(average(ema), held) and not ema.lent


def test_k05_03_an_exception_inside_gives_everything_back_too() -> None:
    model, ema = _trained()
    own, objects = everything(model), [id(t) for t in (*model.parameters(), *model.buffers())]
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error), ema.lent_to(model):
            model.train()(torch.randn(4, 4))
            raise error("inside")
        assert same(everything(model), own) and not ema.lent
    assert [id(t) for t in (*model.parameters(), *model.buffers())] == objects


def test_k05_04_lending_between_updates_does_not_change_training() -> None:
    def trained(every: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        torch.manual_seed(3)
        model = Net()
        ema = Ema(model, 0.9)
        for n, _ in enumerate(train(model, 6)):
            ema.update(model)
            if every and n % every == 0:
                with ema.lent_to(model), torch.no_grad():
                    model.eval()(torch.ones(2, 4))
                model.train()
        return everything(model), average(ema)

    never = trained(0)
    for every in (1, 5):
        assert all(same(a, b) for a, b in zip(trained(every), never, strict=True))


def test_gradients_and_modes_pass_through_a_loan() -> None:
    model, ema = _trained()
    model(torch.randn(4, 4)).sum().backward()
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    with ema.lent_to(model):
        assert model.training
    kept = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(grads, kept, strict=True))


def test_a_lent_average_refuses_a_second_borrower_updates_and_loads() -> None:
    model, ema = _trained()
    own, saved = everything(model), copy.deepcopy(ema.state_dict())
    with ema.lent_to(model):
        with pytest.raises(EmaError, match="lent already"), ema.lent_to(model):
            pass
        with pytest.raises(EmaError, match="while the average is lent"):
            ema.update(model)
        with pytest.raises(EmaError, match="while the average is lent"):
            ema.load_state_dict(saved)
        assert ema.lent
    assert same(everything(model), own) and same(average(ema), saved["average"])


def test_another_model_is_refused_untouched() -> None:
    ema = Ema(Net(), 0.9)
    for other in (nn.Linear(4, 4), Net().double()):
        before = everything(other)
        with pytest.raises(EmaError, match="made for"), ema.lent_to(other):
            pass
        with pytest.raises(EmaError, match="made for"):
            ema.update(other)
        assert same(everything(other), before) and not ema.lent and ema.count == 0


def test_a_model_changed_behind_its_average_is_noticed() -> None:
    model = Net()
    ema = Ema(model, 0.9)
    model.norm = nn.BatchNorm1d(4)
    with pytest.raises(EmaError, match="replaced"), ema.lent_to(model):
        pass
    shrunk = nn.Linear(4, 4)
    ema = Ema(shrunk, 0.9)
    shrunk.weight = nn.Parameter(torch.zeros(2, 4))
    with pytest.raises(EmaError, match="no longer fits"):
        ema.update(shrunk)


@pytest.mark.parametrize("stop", range(7))
@pytest.mark.parametrize("buffers", ["copy", "average"])
def test_k05_01_a_split_average_equals_the_straight_one(stop: int, buffers: Any) -> None:
    def run(updates: int, ema: Ema | None, model: Net, skip: int = 0) -> Ema:
        ema = ema or Ema(model, 0.9, warmup=True, buffers=buffers)
        for n, _ in enumerate(train(model, updates)):
            if n >= skip:
                ema.update(model)
        return ema

    def fresh() -> Net:
        torch.manual_seed(5)
        return Net()

    torch.manual_seed(5)
    straight = run(6, None, fresh())
    first = run(stop, None, fresh())
    saved = copy.deepcopy(first.state_dict())
    second = Ema(Net(), 0.5, warmup=False, buffers="recompute")  # other weights and settings: what was saved must win
    second.load_state_dict(saved)
    assert same(average(second), saved["average"])
    second = run(6, second, fresh(), skip=stop)
    assert same(average(second), average(straight)) and second.count == straight.count == 6
    assert {k: v for k, v in second.state_dict().items() if k != "average"} == {
        k: v for k, v in straight.state_dict().items() if k != "average"
    }


def test_a_loaded_buffer_policy_rules_the_next_update() -> None:
    model, ema = _trained(buffers="average")
    other = Ema(model, 0.9, buffers="copy")
    other.update(model)  # sorted its tensors by its own policy already
    other.load_state_dict(ema.state_dict())
    for average_ in (ema, other):
        with torch.no_grad():
            model.norm.running_mean.fill_(5.0)
        average_.update(model)
    assert same(average(other), average(ema)) and not (average(ema)["norm.running_mean"] == 5.0).any()


def test_loading_copies_and_can_be_repeated() -> None:
    model, ema = _trained()
    saved = copy.deepcopy(ema.state_dict())
    other = Ema(Net(), 0.9)
    for _ in range(2):
        other.load_state_dict(saved)
        assert same(average(other), saved["average"])
    other.update(Net())
    assert not same(average(other), saved["average"]) and same(average(ema), saved["average"])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda s: s.pop("count"),
        lambda s: s["average"].pop("a.weight"),
        lambda s: s["average"].update(extra=torch.ones(1)),
        lambda s: s["average"].update({"a.bias": torch.ones(5)}),
        lambda s: s["average"].update({"a.bias": torch.ones(4).double()}),
        lambda s: s.update(decay=2.0),
        lambda s: s.update(buffers="other"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_before_anything_changes(spoil: Any) -> None:
    model, ema = _trained()
    before, saved = copy.deepcopy(ema.state_dict()), copy.deepcopy(Ema(Net(), 0.3).state_dict())
    spoil(saved)
    for refuse in (ema.check_state, ema.load_state_dict):
        with pytest.raises((StateError, EmaError)):
            refuse(saved)
    after = ema.state_dict()
    assert same(after["average"], before["average"]) and after["decay"] == 0.9 and after["count"] == 3


@pytest.mark.parametrize("decay", [-0.1, 1.1, float("nan")])
def test_a_decay_lies_between_zero_and_one(decay: float) -> None:
    with pytest.raises(EmaError, match="from 0 to 1"):
        Ema(nn.Linear(1, 1), decay)


def test_an_unknown_policy_and_an_empty_model_are_refused() -> None:
    with pytest.raises(EmaError, match="copy, average or recompute"):
        Ema(nn.Linear(1, 1), 0.9, buffers="mean")  # type: ignore[arg-type]
    with pytest.raises(EmaError, match="no parameters"):
        Ema(nn.ReLU(), 0.9)


def test_recomputed_statistics_are_torchs_and_leave_modes_and_momentum() -> None:
    model, reference = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=0.3)), None
    batches = [torch.randn(8, 4) + 3 for _ in range(5)]
    for x in batches:
        model(x * 2)
    reference = copy.deepcopy(model)
    update_bn(batches, reference)
    model[1].eval()
    assert recompute_batchnorm(model, batches) == 5
    assert same(everything(model), everything(reference))
    assert model[1].momentum == 0.3 and model.training and model[0].training and not model[1].training


def test_recomputing_draws_nothing_and_is_repeatable() -> None:
    model = Net().train()
    batches = [(torch.randn(8, 4), torch.zeros(8)) for _ in range(3)]
    state = torch.get_rng_state()
    recompute_batchnorm(model, batches)
    first = everything(model.norm)
    recompute_batchnorm(model, batches, lambda m, batch: m(batch[0]))
    assert torch.equal(torch.get_rng_state(), state) and same(everything(model.norm), first)
    assert all(module.training for module in model.modules())


def test_recomputing_puts_back_everything_after_an_exception() -> None:
    model = Net()
    model(torch.randn(8, 4))
    before = everything(model.norm)

    def broken() -> Iterator[Tensor]:
        yield torch.randn(8, 4)
        raise RuntimeError("disk gone")

    with pytest.raises(RuntimeError, match="disk gone"):
        recompute_batchnorm(model, broken())
    assert same(everything(model.norm), before) and model.norm.momentum == 0.1 and model.drop.training
    with pytest.raises(EmaError, match="no batches"):
        recompute_batchnorm(model, [])
    assert same(everything(model.norm), before)


def test_a_model_without_statistics_reads_no_batches() -> None:
    def forbidden() -> Iterator[Tensor]:
        raise AssertionError("read")
        yield

    for model in (nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)):
        assert recompute_batchnorm(model, forbidden()) == 0


def test_recomputed_statistics_go_back_with_the_loan() -> None:
    model, ema = _trained(buffers="recompute")
    with torch.no_grad():
        model.frozen.zero_()
    own = everything(model)
    with ema.lent_to(model):
        recompute_batchnorm(model, [torch.randn(8, 4) + 5 for _ in range(4)])
        assert model.norm.num_batches_tracked.item() == 4
    assert same(everything(model), own)


def test_k05_07_the_average_stays_on_its_device(cuda: torch.device) -> None:
    model = Net().to(cuda)
    ema = Ema(model, 0.9)
    saved = {**ema.state_dict(), "average": {k: v.cpu() for k, v in ema.state_dict()["average"].items()}}
    ema.load_state_dict(saved)
    ema.update(model)
    with ema.lent_to(model):
        model.eval()(torch.ones(2, 4, device=cuda))
    ema.update(model)
    assert {t.device for t in ema.state_dict()["average"].values()} == {cuda}
