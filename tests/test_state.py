"""One RunState: what was saved wins over whatever the objects were built with, and a misfit changes nothing."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from stops import EPOCH, STOPS, UPDATES, differing
from torch import nn
from toys import Net, Toy

from labkit import randomness
from labkit.checkpoint.plain import plain
from labkit.config import RunConfig
from labkit.engine import Engine, open_engine
from labkit.errors import EmaError, LabkitError, StateError
from labkit.recipe import resolve
from labkit.state import PARTS, Saved, capture_model, capture_optimizer, cloned, digests, leaves

EVERYTHING: dict[str, Any] = {
    "jitter": True, "uneven": True, "microbatch_size": (1,), "max_norm": 0.5, "ema_decay": 0.9, "ema_warmup": True,
    "ema_buffers": "average", "eval_every": 2, "eval_weights": "ema", "schedule": "plateau",
    "schedule_clock": "validation", "schedule_interval": 1, "patience": 50, "norm_every": 2,
}  # fmt: skip
SCALED: dict[str, Any] = {
    "precision": "fp16", "initial_scale": 2.0**24, "growth_interval": 2, "schedule": "cosine", "horizon": 15,
    "warmup": 2, "momentum": 0.9, "order": "feistel", "eval_every": 3, "ema_decay": 0.9, "ema_buffers": "recompute",
    "eval_weights": "ema",
}  # fmt: skip


class Counting:
    """A stateful object of a recipe."""

    def __init__(self) -> None:
        self.calls = 0

    def state_dict(self) -> dict[str, int]:
        return {"calls": self.calls}

    def load_state_dict(self, saved: dict[str, int]) -> None:
        self.calls = saved["calls"]


class Rich(Toy):
    """Toy with registered generators of both kinds and a stateful object, all of which bend the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.torch, self.numpy, self.counting = torch.Generator(), np.random.Generator(np.random.PCG64(1)), Counting()

    def generators(self) -> dict[str, Any]:
        return {"torch": self.torch, "numpy": self.numpy}

    def stateful(self) -> dict[str, Any]:
        return {"counting": self.counting}

    def objective(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, int]:
        summed, count = super().objective(model, batch)
        if model.training:
            self.counting.calls += 1
            noise = torch.rand((), generator=self.torch) + self.numpy.random() + np.random.random()
            summed = summed * (1 + 0.1 * noise / self.counting.calls)
        return summed, count


def made(**settings: Any) -> Engine:
    return open_engine(Rich(), resolve(Rich(), "toy", {"updates": UPDATES, **settings}))


@pytest.mark.parametrize("settings", [EVERYTHING, SCALED], ids=["everything", "scaled"])
def test_a_saved_state_wins_over_other_seed_rate_and_decay_at_every_stop(settings: dict[str, Any]) -> None:
    with made(**settings) as engine:
        engine.run(0)
        saved = {0: engine.capture()}
        for update in range(1, UPDATES + 1):
            engine.run(update)
            saved[update] = engine.capture()
        if settings is SCALED:
            assert engine.state.counters.scaler_skipped > 1
    for stops in STOPS.values():
        state = saved[stops[0]]
        for stop, following in zip(stops, [*stops[1:], UPDATES], strict=True):
            randomness.seed_all("another process", stop)
            with made(**settings, seed=0) as restored:
                restored.state.optimizer.param_groups[0]["lr"] = 99.0
                restored.state.optimizer.param_groups[0]["weight_decay"] = 99.0
                if restored.state.ema is not None:
                    restored.state.ema.decay = 0.1
                restored.run(1)  # used objects: nothing of what they hold may stay
                restored.restore(cloned(state))
                assert differing(restored.capture(), saved[stop]) == []
                restored.run(following)
                state = restored.capture()
                assert differing(state, saved[following]) == [], stops


def test_a_captured_state_is_what_restricted_loading_accepts() -> None:
    for settings in (EVERYTHING, SCALED):
        with made(**settings) as engine:
            engine.run(4)
            plain(engine.capture(), copy=False)


def test_capture_does_not_move_anything() -> None:
    with made(**EVERYTHING) as engine:
        engine.run(3)
        first = digests(engine.capture())
        assert digests(engine.capture()) == first
        engine.run(5)
        one = digests(engine.capture())
    with made(**EVERYTHING) as other:
        for update in range(6):
            other.run(update)
            other.capture()
        assert digests(other.capture()) == one


def test_a_capture_inside_working_sees_the_streams_of_now() -> None:
    with made() as engine:
        seen = []
        engine.run(3, lambda record: seen.append(engine.capture()))
        assert len({digests(saved)["rng.torch"] for saved in seen}) == 3
        assert differing(seen[-1], engine.capture()) == []


Damage = Callable[[Saved], None]


def dropped(part: str) -> Damage:
    return lambda saved: saved.pop(part)


def without(*path: Any) -> Damage:
    def damage(saved: Saved) -> None:
        holder = saved
        for name in path[:-1]:
            holder = holder[name]
        del holder[path[-1]]

    return damage


def replaced(value: Any, *path: Any) -> Damage:
    def damage(saved: Saved) -> None:
        holder = saved
        for name in path[:-1]:
            holder = holder[name]
        holder[path[-1]] = value

    return damage


def renamed_moment(saved: Saved) -> None:
    groups = saved["optimizer"]["groups"]
    groups[0]["names"][0] = "not.there"


DAMAGES: dict[str, tuple[Damage, str]] = {
    **{f"no {part}": (dropped(part), part) for part in PARTS},
    "no weight": (without("model", "state", "first.weight"), "first.weight"),
    "no buffer": (without("model", "state", "norm.running_mean"), "norm.running_mean"),
    "an unknown weight": (replaced(torch.zeros(1), "model", "state", "extra"), "extra"),
    "another shape": (replaced(torch.zeros(3), "model", "state", "first.bias"), "first.bias"),
    "another dtype": (replaced(torch.zeros(8).double(), "model", "state", "first.bias"), "first.bias"),
    "a weight that is no tensor": (replaced("text", "model", "state", "first.bias"), "first.bias"),
    "no trainable flag": (without("model", "trainable", "first.bias"), "first.bias"),
    "no module mode": (without("model", "training", "drop"), "drop"),
    "another optimizer": (replaced("SGD", "optimizer", "type"), "SGD"),
    "other group names": (renamed_moment, "not.there"),
    "no group": (replaced([], "optimizer", "groups"), "groups"),
    "a moment of another shape": (
        replaced(torch.zeros(4, 8), "optimizer", "state", "first.weight", "exp_avg"), "first.weight"
    ),
    "no counter": (without("counters", "examples"), "counters"),
    "a counter too many": (replaced(1, "counters", "steps"), "counters"),
    "no best value": (without("best", "value"), "best"),
    "no average": (replaced(None, "ema"), "average"),
    "no average count": (without("ema", "count"), "count"),
    "an average without a weight": (without("ema", "average", "last.bias"), "last.bias"),
    "another precision": (replaced({"kind": "bf16"}, "scaler"), "precision"),
    "no stateful object": (replaced({}, "stateful"), "stateful"),
    "another stateful object": (replaced({"other": {}}, "stateful"), "stateful"),
    **{f"no {stream} stream": (without("rng", stream), stream) for stream in ("python", "numpy", "torch", "cuda")},
    "no registered generators": (without("rng", "generators"), "generators"),
    "one generator less": (without("rng", "generators", "numpy"), "numpy"),
    "one generator more": (replaced({"kind": "torch cpu", "state": torch.zeros(1)}, "rng", "generators", "x"), "x"),
    "a generator of another kind": (
        replaced({"kind": "numpy MT19937", "state": {}}, "rng", "generators", "numpy"), "MT19937"
    ),
    "a damaged torch stream": (replaced(torch.zeros(7, dtype=torch.uint8), "rng", "torch"), "torch"),
    "eight devices": (replaced({n: torch.zeros(16, dtype=torch.uint8) for n in range(8)}, "rng", "cuda"), "8 CUDA"),
    "no schedule clock": (without("schedule", "clock"), "schedule"),
    "no cursor epoch": (without("cursor", "epoch"), "cursor"),
    "a negative cursor": (replaced(-1, "cursor", "examples"), "cursor"),
    "a cursor beyond the data": (replaced(12, "cursor", "examples"), "cursor"),
}  # fmt: skip


@pytest.fixture(scope="module")
def saved_state() -> Saved:
    with made(**{**EVERYTHING, "schedule": "constant", "schedule_clock": "updates"}) as engine:
        engine.run(4)
        return engine.capture()


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_misfit_is_refused_by_name_before_anything_changes(kind: str, saved_state: Saved) -> None:
    damage, said = DAMAGES[kind]
    saved = copy.deepcopy(saved_state)
    damage(saved)
    with made(**{**EVERYTHING, "schedule": "constant", "schedule_clock": "updates", "seed": 5}) as engine:
        engine.run(2)
        before, callers = engine.capture(), randomness.capture()
        with pytest.raises(LabkitError, match=said):
            engine.restore(saved)
        assert differing(before, engine.capture()) == []
        assert randomness.differences(callers, randomness.capture()) == []
        engine.run(3)  # it was refused, not torn


def test_moments_follow_names_whatever_the_order_of_the_parameters() -> None:
    model = Net(norm=True)
    names = dict(model.named_parameters())
    forwards = torch.optim.AdamW(names.values(), lr=0.1)
    backwards = torch.optim.AdamW(list(names.values())[::-1], lr=0.1)
    model(torch.ones(4, 4)).sum().backward()
    forwards.step()
    from labkit.state import prepared_optimizer

    backwards.load_state_dict(prepared_optimizer(model, backwards, capture_optimizer(model, forwards)))
    for parameter in names.values():
        assert torch.equal(forwards.state[parameter]["exp_avg"], backwards.state[parameter]["exp_avg"])


def test_an_optimizer_with_a_tensor_that_is_no_parameter_is_refused() -> None:
    model = Net()
    with pytest.raises(StateError, match=r"\(3,\)"):
        capture_optimizer(model, torch.optim.SGD([*model.parameters(), torch.zeros(3, requires_grad=True)], lr=0.1))


class Numbered(torch.optim.SGD):
    """An optimizer that counts its moves under a name of its own, and lets the rate follow."""

    def step(self, closure: Any = None) -> Any:
        self.state["moves"] = self.state.get("moves", 0) + 1  # type: ignore[index,call-overload]
        for group in self.param_groups:
            group["lr"] = 0.01 / self.state["moves"]  # type: ignore[index,operator]
        return super().step(closure)


def test_what_an_optimizer_keeps_beside_its_parameters_is_saved_too() -> None:
    class Own(Toy):
        def optimizer(self, config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
            return Numbered(model.parameters(), lr=0.01)

    config = resolve(Own(), "toy", {"updates": 9})
    with open_engine(Own(), config) as engine, open_engine(Own(), config) as other:
        engine.run(4)
        other.restore(engine.capture())
        engine.run(9)
        other.run(9)
        assert other.state.optimizer.state["moves"] == 9  # type: ignore[index]
        assert differing(engine.capture(), other.capture()) == []


def test_tied_weights_stay_tied_and_count_as_parameters() -> None:
    class Tied(Net):
        def __init__(self) -> None:
            super().__init__()
            self.again = self.first

    class Own(Toy):
        def model(self, config: RunConfig) -> nn.Module:
            return Tied()

    config = resolve(Own(), "toy", {"updates": 9, "eval_every": 0})
    with open_engine(Own(), config) as engine, open_engine(Own(), config) as other:
        engine.run(4)
        other.restore(engine.capture())
        assert other.state.model.again.weight is other.state.model.first.weight
        assert "again.weight" in capture_model(other.state.model)["trainable"]
        before = digests(engine.capture())
        with torch.no_grad():
            engine.state.model.again.weight += 1
        after = digests(engine.capture())
        assert {part for part in before if before[part] != after[part]} == {"parameters"}


def test_hidden_buffers_extra_state_and_compiled_models_are_saved() -> None:
    class Hidden(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("quiet", torch.zeros(2), persistent=False)
            self.note = 0

        def get_extra_state(self) -> int:
            return self.note

        def set_extra_state(self, state: int) -> None:
            self.note = state

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.quiet = self.quiet + 1  # another tensor in its place
                self.note += 1
            return super().forward(features) + self.quiet.sum() + self.note

    class Own(Toy):
        def model(self, config: RunConfig) -> nn.Module:
            return Hidden()

    config = resolve(Own(), "toy", {"updates": 9, "eval_every": 1})
    with open_engine(Own(), config) as engine, open_engine(Own(), config) as other:
        engine.run(4)
        other.restore(engine.capture())
        engine.run(9)
        other.run(9)
        assert other.state.model.note == 9 and float(other.state.model.quiet[0]) == 9
        assert differing(engine.capture(), other.capture()) == []


def test_a_refused_attempt_puts_back_a_buffer_that_forward_replaced() -> None:
    class Centred(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("center", torch.zeros(()))

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            out = super().forward(features) - self.center
            if self.training:
                self.center = self.center * 0.9 + out.detach().mean() * 0.1
            return out

    class Own(Toy):
        def model(self, config: RunConfig) -> nn.Module:
            return Centred()

        def objective(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, int]:
            indices, features, targets = batch
            bad = model.training and len(self.seen) == 2
            return super().objective(model, (indices, features * math.nan if bad else features, targets))

    with open_engine(Own(), resolve(Own(), "toy", {"updates": 9, "on_nonfinite": "skip"})) as engine:
        engine.run(2)
        before = digests(engine.capture())["buffers"]
        with engine.working():
            assert engine.update().skipped is not None
        assert digests(engine.capture())["buffers"] == before
        engine.run(9)


def test_a_state_is_not_captured_while_the_average_is_lent() -> None:
    with made(ema_decay=0.9) as engine:
        engine.run(2)
        assert engine.state.ema is not None
        with engine.state.ema.lent_to(engine.state.model), pytest.raises(EmaError):
            engine.capture()


def test_every_leaf_of_a_state_is_in_some_digest(saved_state: Saved) -> None:
    before = digests(saved_state)
    for name, value in leaves(saved_state):
        changed = copy.deepcopy(saved_state)
        holder: Any = changed
        *way, last = path_of(changed, name)
        for step in way:
            holder = holder[step]
        if isinstance(holder, tuple):  # betas
            *way, last = way
            holder = changed
            for step in way:
                holder = holder[step]
            holder[last] = (0.5, 0.5)
        elif isinstance(value, torch.Tensor):
            holder[last] = value.clone().logical_not() if value.dtype is torch.bool else value + 1
        else:
            holder[last] = "changed"
        after = digests(changed)
        assert sum(before.get(part) != after.get(part) for part in before | after) == 1, name


def path_of(saved: Any, name: str) -> list[Any]:
    """The keys that lead to a dotted name; names hold dots themselves."""
    if name == "":
        return []
    steps = list(saved) if isinstance(saved, dict) else range(len(saved))
    for step in sorted(steps, key=lambda s: -len(str(s))):
        if name == str(step) or name.startswith(f"{step}."):
            inner = saved[step]
            if name == str(step):
                return [step]
            if isinstance(inner, dict | list | tuple):
                return [step, *path_of(inner, name[len(str(step)) + 1 :])]
    raise AssertionError(name)


def test_an_epoch_of_the_table_is_an_epoch_of_the_recipe() -> None:
    assert -(-len(Toy().splits(resolve(Toy(), "t", {})).train) // 2) == EPOCH
