"""Promises of labkit.weighting."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from labkit.errors import WeightingError
from labkit.weighting import Total, check_additive, count_valid, cross_entropy_sum, perplexity

PAD = -100


def test_a_total_adds_numerators_and_denominators() -> None:
    total = sum([Total(8.0, 1), Total(4.0, 3)], Total.zero())
    assert total == Total(12.0, 4) and total.mean == 3.0


def test_a_mean_over_nothing_is_refused_not_nan() -> None:
    with pytest.raises(WeightingError, match="over nothing"):
        _ = Total.zero().mean


@pytest.mark.parametrize("count", [-1, 2.0, True, None])
def test_a_count_is_a_whole_number(count: Any) -> None:
    with pytest.raises(WeightingError, match="whole number"):
        Total(1.0, count)


def test_totals_come_from_scalars_on_a_device() -> None:
    assert Total.from_tensors(torch.tensor(1.5), torch.tensor(3)) == Total(1.5, 3)
    assert Total.from_tensors(1, 3) == Total(1.0, 3)
    for wrong in [(torch.ones(2), 2), (torch.tensor(1.0), torch.ones(2)), (1.0, 0.5), (1.0, torch.tensor(2.5))]:
        with pytest.raises(WeightingError):
            Total.from_tensors(*wrong)


def test_k11_02_perplexity_takes_the_exponential_last() -> None:
    a, b = Total(16.0, 8), Total(15.0, 5)
    assert perplexity(a + b) == pytest.approx(math.exp(31 / 13))
    assert perplexity(a + b) != pytest.approx((perplexity(a) * 8 + perplexity(b) * 5) / 13)
    assert perplexity(Total(1e6, 1)) == math.inf


def test_cross_entropy_sum_is_torch_without_padding() -> None:
    logits, targets = torch.randn(3, 5, 7), torch.randint(7, (3, 5))
    targets[1, 2:] = PAD
    total, count = cross_entropy_sum(logits, targets, per="token")
    kept = targets != PAD
    assert count == 12 == count_valid(targets)
    assert total == cross_entropy(logits[kept], targets[kept], reduction="sum")


def test_padding_columns_change_neither_sum_nor_count_nor_gradient() -> None:
    logits, targets = torch.randn(2, 4, 5, dtype=torch.float64), torch.randint(5, (2, 4))
    wide = torch.cat([logits, torch.randn(2, 3, 5, dtype=torch.float64)], dim=1)
    padded = torch.cat([targets, torch.full((2, 3), PAD)], dim=1)
    for per in ("token", "sequence"):
        leaf, wide_leaf = logits.clone().requires_grad_(), wide.clone().requires_grad_()
        total, count = cross_entropy_sum(leaf, targets, per=per)  # type: ignore[arg-type]
        wide_total, wide_count = cross_entropy_sum(wide_leaf, padded, per=per)  # type: ignore[arg-type]
        total.backward()
        wide_total.backward()
        assert wide_leaf.grad is not None and leaf.grad is not None
        assert count == wide_count
        torch.testing.assert_close(total, wide_total)
        torch.testing.assert_close(leaf.grad, wide_leaf.grad[:, :4])
        assert not wide_leaf.grad[:, 4:].any()


def test_per_sequence_gives_every_row_the_same_weight() -> None:
    logits, targets = torch.randn(3, 4, 5), torch.randint(5, (3, 4))
    targets[0, 1:] = PAD
    targets[2] = PAD
    total, count = cross_entropy_sum(logits, targets, per="sequence")
    rows = [cross_entropy(logits[i], targets[i], ignore_index=PAD) for i in (0, 1)]
    assert count == 2 == count_valid(targets, per="sequence")
    torch.testing.assert_close(total, rows[0] + rows[1])


@pytest.mark.parametrize("per", ["token", "sequence"])
def test_k03_01_nothing_but_padding_contributes_zero_with_a_zero_gradient(per: Any) -> None:
    logits = torch.randn(2, 3, 4, requires_grad=True)
    total, count = cross_entropy_sum(logits, torch.full((2, 3), PAD), per=per)
    total.backward()
    assert count == 0 and total.item() == 0.0
    assert logits.grad is not None and not logits.grad.any()


def test_an_empty_batch_is_zero_over_zero() -> None:
    for per in ("token", "sequence"):
        total, count = cross_entropy_sum(torch.randn(0, 3, 4), torch.empty(0, 3, dtype=torch.long), per=per)  # type: ignore[arg-type]
        assert (total.item(), count) == (0.0, 0)


def test_one_target_per_example_counts_alike_both_ways() -> None:
    logits, targets = torch.randn(6, 3), torch.tensor([0, 1, PAD, 2, 2, 1])
    assert cross_entropy_sum(logits, targets, per="sequence") == cross_entropy_sum(logits, targets, per="token")
    assert count_valid(targets, per="sequence") == count_valid(targets) == 5


def test_another_ignore_index_is_respected() -> None:
    logits, targets = torch.randn(2, 3, 4), torch.tensor([[1, 0, 0], [2, 3, 0]])
    total, count = cross_entropy_sum(logits, targets, ignore_index=0)
    assert count == 3 == count_valid(targets, ignore_index=0)
    torch.testing.assert_close(total, cross_entropy(logits[targets != 0], targets[targets != 0], reduction="sum"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_do_not_overflow_the_sum(dtype: torch.dtype) -> None:
    logits = torch.zeros(70_000, 3, dtype=dtype)
    total, _ = cross_entropy_sum(logits, torch.zeros(70_000, dtype=torch.long))
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(70_000 * math.log(3), rel=1e-4)


def test_classes_first_is_refused_with_the_remedy() -> None:
    with pytest.raises(WeightingError, match="movedim"):
        cross_entropy_sum(torch.randn(2, 7, 5), torch.randint(7, (2, 5)))


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(WeightingError, match="per='batch'"):
        count_valid(torch.ones(3), per="batch")  # type: ignore[arg-type]
    with pytest.raises(WeightingError, match="per='batch'"):
        cross_entropy_sum(torch.ones(3, 2), torch.ones(3), per="batch")  # type: ignore[arg-type]


def _gradient(weight: Tensor, inputs: Tensor, targets: Tensor, cuts: list[int], per: Any) -> tuple[Tensor, Total]:
    weight = weight.clone().requires_grad_()
    count = count_valid(targets, per=per)
    seen = Total.zero()
    for x, y in zip(inputs.split(cuts), targets.split(cuts), strict=True):
        summed, found = cross_entropy_sum(x @ weight, y, per=per)
        (summed / count).backward()
        seen += Total.from_tensors(summed.detach(), found)
    assert weight.grad is not None
    return weight.grad, seen


@given(st.lists(st.integers(0, 8), min_size=0, max_size=5), st.sampled_from(["token", "sequence"]), st.integers(0, 99))
def test_k03_07_every_partition_of_an_update_has_the_same_gradient(cuts: list[int], per: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(9, 4, 3, generator=generator, dtype=torch.float64)
    targets = torch.randint(5, (9, 4), generator=generator)
    targets[torch.rand(9, 4, generator=generator) < 0.4] = PAD
    targets[0, 0] = 1
    weight = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    sizes: list[int] = []
    for cut in cuts:
        sizes.append(min(cut, 9 - sum(sizes)))
    sizes.append(9 - sum(sizes))
    whole, seen_whole = _gradient(weight, inputs, targets, [9], per)
    parts, seen_parts = _gradient(weight, inputs, targets, sizes, per)
    # Nine terms of order one in another order of addition: a few units of 2e-16.
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-14)
    assert seen_parts.count == seen_whole.count and seen_parts.sum == pytest.approx(seen_whole.sum, rel=1e-12)


def test_k03_01_the_average_of_means_is_another_gradient() -> None:
    """The control: x * w with microbatches [8] and [0, 0, 4] has gradient 3, the average of means says 4.667."""
    by_count = (Total(8.0, 1) + Total(4.0, 3)).mean
    by_means = (Total(8.0, 1).mean + Total(4.0, 3).mean) / 2
    assert by_count == 3.0 and by_means == pytest.approx(14 / 3)


def _objective(reduction: str) -> Any:
    model = nn.Linear(4, 3)

    def objective(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        return cross_entropy(model(batch[0]), batch[1], reduction=reduction), len(batch[1])

    return objective


def _batches() -> list[tuple[Tensor, Tensor]]:
    x, y = torch.randn(12, 4), torch.randint(3, (12,))
    return [(x[:4], y[:4]), (x[4:], y[4:]), (x, y)]


def test_a_sum_is_additive_and_leaves_no_graph() -> None:
    check_additive(_objective("sum"), *_batches())


def test_a_mean_is_found_out_with_its_three_numbers() -> None:
    batches, objective = _batches(), _objective("mean")
    with pytest.raises(WeightingError, match="returns a mean") as caught:
        check_additive(objective, *batches)
    for batch in batches:
        assert f"{objective(batch)[0].item():.6g}" in str(caught.value)


def test_a_constant_term_is_found_out() -> None:
    objective = _objective("sum")
    with pytest.raises(WeightingError, match="do not depend on the examples"):
        check_additive(lambda batch: (objective(batch)[0] + 1.0, objective(batch)[1]), *_batches())


def test_counting_batches_is_found_out() -> None:
    objective = _objective("sum")
    with pytest.raises(WeightingError, match="counts are 1 for A, 1 for B, but 1"):
        check_additive(lambda batch: (objective(batch)[0], 1), *_batches())


def test_an_objective_that_returns_no_pair_is_refused() -> None:
    with pytest.raises(WeightingError, match="a pair"):
        check_additive(lambda batch: batch[0].sum(), *_batches())  # type: ignore[arg-type,return-value]
    with pytest.raises(WeightingError, match="shape"):
        check_additive(lambda batch: (batch[0], 1), *_batches())


def test_values_that_are_not_finite_are_left_to_the_guard() -> None:
    check_additive(lambda batch: (batch[0].sum() * math.nan, len(batch[0])), *_batches())
