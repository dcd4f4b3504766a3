"""Promises of labkit.precision."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from labkit import precision
from labkit.errors import PrecisionError, StateError
from labkit.norms import clip_, gradient_norm
from labkit.precision import NumericPolicy, Precision

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _switches_put_back() -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = (cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark)
    yield
    cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = before


class Scalar:
    """One weight and an optimizer; attempt(gradient) makes one attempt whose true gradient is that number."""

    def __init__(self, weight: float = 0.0, rate: float = 1.0, device: torch.device = CPU, **scaler: Any) -> None:
        self.weight = nn.Parameter(torch.tensor([weight], device=device))
        self.optimizer = torch.optim.SGD([self.weight], lr=rate)
        self.precision = Precision("fp16", device, **scaler)

    def backward(self, gradient: float) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.precision.scale(self.weight.sum() * gradient).backward()

    def attempt(self, gradient: float) -> bool:
        self.backward(gradient)
        self.precision.unscale_(self.optimizer)
        return self.precision.apply(self.optimizer)


def test_k02_04_a_grown_scale_is_not_a_skip() -> None:
    run = Scalar(initial_scale=8.0, growth_interval=2)
    moved, scales = [], []
    for gradient in (1.0, 1.0, 1.0, 1.0, math.inf):
        moved.append(run.attempt(gradient))
        scales.append(run.precision.current_scale)
    assert moved == [True, True, True, True, False]
    assert scales == [8.0, 16.0, 16.0, 32.0, 16.0]
    assert run.weight.item() == -4.0
    changed = [a != b for a, b in zip([8.0, *scales], scales, strict=False)]
    assert changed.count(False) == 2  # the naive rule would commit two of the four


def test_k02_03_a_skip_leaves_the_parameters_alone_and_says_so() -> None:
    run = Scalar(initial_scale=8.0)
    assert [run.attempt(g) for g in (1.0, 1.0, math.nan, 1.0, 1.0)] == [True, True, False, True, True]
    assert run.weight.item() == -4.0


def test_apply_unscales_when_nobody_did() -> None:
    run = Scalar(initial_scale=1024.0)
    run.backward(0.5)
    assert run.precision.apply(run.optimizer) and run.weight.item() == -0.5


def test_a_fused_optimizer_that_handles_the_skip_itself_is_told_apart_too() -> None:
    run = Scalar(initial_scale=8.0, growth_interval=1)
    run.optimizer = torch.optim.SGD([run.weight], lr=1.0, fused=True)
    assert [run.attempt(g) for g in (1.0, math.inf, 1.0)] == [True, False, True]
    assert run.weight.item() == -2.0


@pytest.mark.parametrize("scale", [1.0, 1024.0, 65536.0])
def test_k06_04_norm_and_clipping_do_not_depend_on_the_scale(scale: float) -> None:
    run = Scalar(initial_scale=scale)
    run.backward(0.5)
    run.precision.unscale_(run.optimizer)
    assert run.weight.grad is not None
    norm = gradient_norm([run.weight.grad])
    clip_([run.weight.grad], norm, 1.0)
    assert run.precision.apply(run.optimizer)
    assert norm == 0.5 and run.weight.item() == -0.5


def test_found_nonfinite_tells_before_apply() -> None:
    run = Scalar(initial_scale=8.0)
    for gradient, found in ((1.0, False), (math.inf, True), (1.0, False)):
        run.backward(gradient)
        run.precision.unscale_(run.optimizer)
        assert run.precision.found_nonfinite(run.optimizer) is found
        assert run.precision.apply(run.optimizer) is not found
    assert not run.precision.found_nonfinite(run.optimizer)


def test_k06_01_scale_growth_counter_and_settings_are_saved() -> None:
    run = Scalar(initial_scale=8.0, growth_interval=2)
    run.attempt(1.0)
    saved = run.precision.state_dict()
    assert saved == {
        "kind": "fp16",
        "scale": 8.0,
        "growth_tracker": 1,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2,
    }
    other = Scalar(initial_scale=64.0, growth_interval=100)  # other defaults: what was saved must win
    other.precision.load_state_dict(json.loads(json.dumps(saved)))
    assert other.attempt(1.0) and other.precision.current_scale == 16.0


@pytest.mark.parametrize("used", [False, True])
def test_k06_02_k06_03_loading_is_a_pure_round_trip_before_and_after_first_use(used: bool) -> None:
    run = Scalar(initial_scale=1024.0, growth_interval=2)
    run.attempt(1.0)
    saved = run.precision.state_dict()
    other = Scalar(initial_scale=2.0)
    if used:
        other.attempt(1.0)
        other.attempt(math.inf)
    for _ in range(2):
        other.precision.load_state_dict(saved)
        assert other.precision.state_dict() == saved and other.precision.current_scale == 1024.0


def test_a_split_run_has_the_scales_of_the_straight_one_at_every_stop() -> None:
    gradients = [1.0, 1.0, 1.0, math.inf, 1.0, 1.0, math.nan, 1.0]

    def finish(run: Scalar, todo: list[float]) -> list[Any]:
        return [(run.attempt(g), run.precision.current_scale, run.weight.item()) for g in todo]

    straight = finish(Scalar(initial_scale=8.0, growth_interval=2), gradients)
    for stop in range(len(gradients) + 1):
        first = Scalar(initial_scale=8.0, growth_interval=2)
        head = finish(first, gradients[:stop])
        second = Scalar(weight=first.weight.item(), initial_scale=3.0, growth_interval=7)
        second.precision.load_state_dict(first.precision.state_dict())
        assert head + finish(second, gradients[stop:]) == straight


def test_an_initial_scale_is_reported_as_the_scaler_holds_it() -> None:
    run = Scalar(initial_scale=65536.1)
    before = run.precision.current_scale
    run.backward(1.0)
    assert before == run.precision.current_scale


@pytest.mark.parametrize("spoil", [{"kind": "bf16"}, {"scale": None}, {"extra": 1}])
def test_a_state_that_does_not_fit_is_refused_before_anything_moves(spoil: dict[str, Any]) -> None:
    run = Scalar(initial_scale=8.0)
    before = run.precision.state_dict()
    state: dict[str, Any] = {**Scalar(initial_scale=2.0).precision.state_dict(), **spoil}
    if spoil == {"scale": None}:
        del state["scale"]
    for refuse in (run.precision.check_state, run.precision.load_state_dict):
        with pytest.raises(StateError):
            refuse(state)
    assert run.precision.state_dict() == before


@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_without_a_scaler_the_same_calls_work(kind: Any) -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    run = Precision(kind, CPU)
    loss = weight.sum() * 0.5
    assert run.scale(loss) is loss and run.current_scale is None
    loss.backward()
    run.unscale_(optimizer)
    assert not run.found_nonfinite(optimizer) and run.apply(optimizer) and weight.item() == -0.5
    assert run.state_dict() == {"kind": kind}
    run.load_state_dict({"kind": kind})


@pytest.mark.parametrize(
    ("kind", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_autocast_decides_the_format_of_the_forward_pass_only(kind: Any, dtype: torch.dtype) -> None:
    model = nn.Linear(3, 2)
    run = Precision(kind, CPU)
    for _ in range(2):
        with run.autocast():
            out = model(torch.ones(1, 3))
        assert out.dtype is dtype
    assert model(torch.ones(1, 3)).dtype is torch.float32
    run.scale(out.float().sum()).backward()
    assert model.weight.grad is not None and model.weight.grad.dtype is torch.float32


def test_fp16_trains_on_the_cpu_with_convolutions() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run = Precision("fp16", CPU, initial_scale=2.0**40)
    moved, inputs, targets = [], torch.randn(8, 1, 8, 8), torch.randint(3, (8,))
    for _ in range(60):
        optimizer.zero_grad(set_to_none=True)
        with run.autocast():
            loss = nn.functional.cross_entropy(model(inputs).float(), targets)
        run.scale(loss).backward()
        run.unscale_(optimizer)
        moved.append(run.apply(optimizer))
    assert not moved[0] and moved[-1]  # the first attempts of an fp16 run back off
    assert all(p.isfinite().all() for p in model.parameters()) and loss.item() < 0.7


def test_parameters_in_half_precision_are_refused() -> None:
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float16))
    optimizer, run = torch.optim.SGD([weight], lr=1.0), Precision("fp16", CPU, initial_scale=2.0)
    run.scale(weight.sum()).backward()
    with pytest.raises(PrecisionError, match="model.half"):
        run.unscale_(optimizer)


def test_apply_without_gradients_or_scaling_says_what_is_missing() -> None:
    run = Scalar(initial_scale=2.0)
    with pytest.raises(PrecisionError, match="never scaled"):
        run.precision.unscale_(run.optimizer)
    run.precision.scale(torch.ones(1))
    with pytest.raises(PrecisionError, match="no parameter has a gradient"):
        run.precision.apply(run.optimizer)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 1e-60, 1e60])
def test_an_unusable_scale_is_refused(value: float) -> None:
    with pytest.raises(PrecisionError, match="initial_scale"):
        Precision("fp16", CPU, initial_scale=value)


@pytest.mark.parametrize("value", [0, -1, 2.0, True])
def test_an_unusable_growth_interval_is_refused(value: Any) -> None:
    with pytest.raises(PrecisionError, match="growth_interval"):
        Precision("fp16", CPU, growth_interval=value)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(PrecisionError, match="fp32, bf16 or fp16"):
        Precision("fp8", CPU)  # type: ignore[arg-type]


def test_the_policy_is_set_in_one_call_and_read_back() -> None:
    loose = precision.apply(NumericPolicy(tf32=True, matmul="high", deterministic=False, cudnn_benchmark=True), 2)
    assert (loose["tf32"], loose["matmul"], loose["deterministic"], loose["cudnn_benchmark"], loose["threads"]) == (
        True, "high", False, True, 2,
    )  # fmt: skip
    strict = precision.apply(NumericPolicy(), 1)
    assert strict == precision.current() == json.loads(json.dumps(strict))
    assert strict["deterministic"] and strict["cudnn_deterministic"] and not strict["tf32"]
    assert torch.are_deterministic_algorithms_enabled() and torch.get_num_threads() == 1
    assert torch.get_float32_matmul_precision() == "highest" and not torch.backends.cudnn.benchmark


def test_a_switch_that_torch_does_not_take_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.use_deterministic_algorithms(False)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda mode: None)
    with pytest.raises(PrecisionError, match="did not take deterministic=True"):
        precision.apply(NumericPolicy(deterministic=True), 1)


@pytest.mark.parametrize(
    "settings",
    [
        {"matmul": "best"},
        {"matmul": "high", "tf32": False},
        {"deterministic": True, "cudnn_benchmark": True},
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(PrecisionError):
        NumericPolicy(**settings)


@pytest.mark.parametrize("threads", [0, -2, 1.0, True])
def test_threads_are_a_whole_number_from_one(threads: Any) -> None:
    with pytest.raises(PrecisionError, match="threads"):
        precision.apply(NumericPolicy(), threads)


def test_the_scaler_behaves_on_cuda_as_on_cpu(cuda: torch.device) -> None:
    gradients = [1.0, 1.0, math.inf, 1.0, math.nan]
    runs = [Scalar(device=device, initial_scale=8.0, growth_interval=2) for device in (CPU, cuda)]
    seen = [[(run.attempt(g), run.precision.current_scale) for g in gradients] for run in runs]
    assert seen[0] == seen[1]
