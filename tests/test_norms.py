"""Promises of labkit.norms."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, get_total_norm

from labkit import norms
from labkit.errors import ConfigError, NonfiniteError, RecipeError, StateError
from labkit.norms import all_finite, clip_, first_nonfinite, gradient_norm, layer_norms, snapshot, update_norm

NAN, INF = math.nan, math.inf


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_norm_is_torchs_bit_for_bit(dtype: torch.dtype) -> None:
    gradients = [torch.randn(7, 5, dtype=dtype), torch.randn(3, dtype=dtype), torch.zeros(4, dtype=dtype)]
    assert gradient_norm(gradients) == get_total_norm(gradients).item()


def test_the_norm_of_nothing_and_of_zeros_is_zero() -> None:
    assert gradient_norm([]) == 0.0
    assert gradient_norm([torch.zeros(3), torch.empty(0)]) == 0.0


def test_huge_finite_entries_have_a_finite_norm() -> None:
    gradients = [torch.tensor([3e19]), torch.tensor([4e19])]
    assert get_total_norm(gradients).item() == INF  # what it protects from
    assert gradient_norm(gradients) == pytest.approx(5e19, rel=1e-6)
    assert gradient_norm([torch.full((4,), 3e38)]) == pytest.approx(6e38, rel=1e-6)
    assert gradient_norm([torch.tensor([3e200, 4e200], dtype=torch.float64)]) == pytest.approx(5e200)
    assert gradient_norm([torch.full((4,), 6e4, dtype=torch.float16)]) == pytest.approx(1.2e5, rel=1e-3)


def test_tiny_entries_do_not_vanish() -> None:
    gradients = [torch.tensor([3e-30, 4e-30])]
    assert get_total_norm(gradients).item() == 0.0
    assert gradient_norm(gradients) == pytest.approx(5e-30, rel=1e-6, abs=0.0)


@pytest.mark.parametrize(("entry", "seen"), [(NAN, "nan"), (INF, "inf"), (-INF, "inf")])
def test_an_entry_that_is_not_finite_shows_in_the_norm(entry: float, seen: str) -> None:
    assert str(gradient_norm([torch.ones(3), torch.tensor([3e19, entry])])) == seen
    assert str(gradient_norm([torch.tensor([entry]), torch.ones(3)])) == seen


def test_nan_beside_inf_is_nan() -> None:
    assert math.isnan(gradient_norm([torch.tensor([INF, NAN])]))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=12))
def test_the_norm_of_finite_entries_is_finite_and_right(entries: list[float]) -> None:
    norm = gradient_norm([torch.tensor([entry]) for entry in entries])
    # float32 sums of a dozen squares are good to about 12 * 6e-8.
    assert math.isfinite(norm) and norm == pytest.approx(math.hypot(*entries), rel=2e-6, abs=1e-44)


def test_sparse_gradients_are_refused_with_the_remedy() -> None:
    with pytest.raises(RecipeError, match="sparse=False"):
        gradient_norm([torch.eye(2).to_sparse()])


def test_tensors_of_several_dtypes_are_measured_together() -> None:
    assert gradient_norm([torch.tensor([3.0]), torch.tensor([4.0], dtype=torch.float64)]) == 5.0


def test_all_finite() -> None:
    assert all_finite([]) and all_finite([torch.full((2,), 3e38), torch.arange(3), torch.empty(0)])
    for bad in (NAN, INF, -INF):
        assert not all_finite([torch.ones(3), torch.tensor([1.0, bad])])


def test_first_nonfinite_names_the_first_in_the_order_given() -> None:
    named = [("a", None), ("b", torch.ones(2)), ("c", torch.tensor([NAN])), ("d", torch.tensor([INF]))]
    assert first_nonfinite(named) == "c"
    assert first_nonfinite(reversed(named)) == "d"
    assert first_nonfinite(named[:2]) is None


@pytest.mark.parametrize("limit", [1e-4, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_clipping_is_torchs_bit_for_bit(limit: float, dtype: torch.dtype) -> None:
    model = _model().to(dtype)
    model(torch.randn(4, 6, dtype=dtype)).square().sum().backward()
    mine = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    norm = gradient_norm(mine)
    assert clip_(mine, norm, limit) == (norm > limit)
    assert clip_grad_norm_(model.parameters(), limit).item() == norm
    for a, p in zip(mine, model.parameters(), strict=True):
        assert p.grad is not None and torch.equal(a, p.grad)


def test_below_the_limit_nothing_is_touched() -> None:
    for limit in (5.0, 5.0000001, 10.0):
        gradients = [torch.tensor([3.0, 4.0])]
        version = gradients[0]._version
        assert not clip_(gradients, 5.0, limit)
        assert gradients[0].tolist() == [3.0, 4.0] and gradients[0]._version == version
    tiny = [torch.tensor([3e-9, 4e-9])]
    assert not clip_(tiny, gradient_norm(tiny), 1e-8)  # here torch's 1e-6 would shorten it a hundred times


@pytest.mark.parametrize("scale", [1.0, 1e18, 6e37])
def test_direction_is_kept_for_huge_finite_gradients(scale: float) -> None:
    gradients = [torch.tensor([3.0, 0.0]) * scale, torch.tensor([4.0]) * scale]
    assert clip_(gradients, gradient_norm(gradients), 1.0)
    torch.testing.assert_close(torch.cat(gradients), torch.tensor([0.6, 0.0, 0.8]), rtol=1e-5, atol=0.0)


def test_a_norm_beyond_the_dtype_still_clips() -> None:
    gradients = [torch.full((10_000,), 3e38)]
    assert clip_(gradients, gradient_norm(gradients), 1.0)
    assert gradient_norm(gradients) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("norm", [NAN, INF])
def test_k06_06_clipping_refuses_what_it_would_spread(norm: float) -> None:
    gradients = [torch.tensor([1.0, norm])]
    with pytest.raises(NonfiniteError, match="refuse this update"):
        clip_(gradients, norm, 1.0)
    assert gradients[0][0] == 1.0


@pytest.mark.parametrize("limit", [0.0, -1.0, NAN])
def test_a_limit_is_above_zero(limit: float) -> None:
    with pytest.raises(ConfigError, match="above zero"):
        clip_([torch.ones(1)], 1.0, limit)


def test_k03_05_one_clip_after_the_whole_update() -> None:
    whole = [torch.tensor([3.0, 0.0]) / 2 + torch.tensor([0.0, 4.0]) / 2]
    norm = gradient_norm(whole)
    clip_(whole, norm, 1.0)
    assert norm == 2.5 and whole[0].tolist() == pytest.approx([0.6, 0.8], rel=1e-5)


def test_update_norm_is_the_distance_moved() -> None:
    model = _model()
    parameters = list(model.parameters())
    before = snapshot(parameters)
    assert update_norm(parameters, before) == 0.0
    with torch.no_grad():
        parameters[0][0, 0] += 3.0
        parameters[3][0] -= 4.0
    assert update_norm(parameters, before) == pytest.approx(5.0, rel=1e-6)
    assert not any(tensor.requires_grad for tensor in before)
    with pytest.raises(StateError):
        update_norm(parameters, before[:-1])


def test_layer_norms_tell_an_unused_layer_from_a_zero_gradient() -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "dead": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    x = torch.ones(1, 2)
    (model["used"](x).sum() + 0.0 * model["dead"](x).sum()).backward()
    found = layer_norms(model)
    assert found["unused"].gradient is None
    assert found["dead"].gradient == 0.0
    assert found["used"].gradient == pytest.approx(math.sqrt(6.0))
    assert list(found) == ["used", "dead", "unused"]


def test_layer_norms_give_update_and_ratio_from_a_snapshot() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        for p in model[1].parameters():
            p.zero_()
    before = snapshot(model.parameters())
    with torch.no_grad():
        model[0].weight += 0.5
    found = layer_norms(model, before)
    assert found["0"] == norms.LayerNorm(gradient=None, weight=3.0, update=1.0, ratio=pytest.approx(1 / 3))
    assert found["1"] == norms.LayerNorm(gradient=None, weight=0.0, update=0.0, ratio=None)
    assert layer_norms(model)["0"].update is None
    with pytest.raises(StateError):
        layer_norms(model, before[:1])


def test_layer_norms_survive_huge_tiny_and_nan_gradients() -> None:
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False), nn.Linear(1, 1))
    model[0].weight.grad = torch.tensor([[3e19, 4e19]])
    model[1].weight.grad = torch.tensor([[3e-30, 4e-30]])
    model[2].weight.grad, model[2].bias.grad = torch.tensor([[INF]]), torch.tensor([NAN])
    found = layer_norms(model)
    assert found["0"].gradient == pytest.approx(5e19, rel=1e-6)
    assert found["1"].gradient == pytest.approx(5e-30, rel=1e-6, abs=0.0)
    assert found["2"].gradient is not None and math.isnan(found["2"].gradient)


def test_layer_norms_join_to_the_norm_of_the_whole() -> None:
    model = _model()
    model(torch.randn(4, 6)).sum().backward()
    gradients: list[Tensor] = [p.grad for p in model.parameters() if p.grad is not None]
    joined = math.hypot(*(layer.gradient or 0.0 for layer in layer_norms(model).values()))
    assert joined == pytest.approx(gradient_norm(gradients), rel=1e-6)


def test_layer_norms_of_a_model_without_parameters_are_empty() -> None:
    assert layer_norms(nn.ReLU()) == {}


def test_the_norm_on_cuda_agrees_with_the_cpu(cuda: torch.device) -> None:
    gradients = [torch.randn(50), torch.randn(3, 4)]
    moved = [gradient.to(cuda) for gradient in gradients]
    assert gradient_norm(moved) == pytest.approx(gradient_norm(gradients), rel=1e-6)
    assert not all_finite([torch.tensor([NAN], device=cuda)])
    assert gradient_norm([torch.tensor([3e19, 4e19], device=cuda)]) == pytest.approx(5e19, rel=1e-6)
