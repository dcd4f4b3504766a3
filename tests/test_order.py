"""What the data order promises: every example once, at any start, from nothing but (seed, epoch)."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import order
from labkit.errors import ConfigError, DataError, StateError
from labkit.order import Cursor, EpochOrder, cut, digest, feistel, round_keys

ROOT = Path(__file__).parent.parent
POWERS = [2**k + d for k in range(2, 15) for d in (-1, 0, 1)]
FOURS = [4**k + d for k in (7, 8, 9) for d in (-1, 0, 1, 2)]  # 65537 and 262145: where a well-known library loses one
AWKWARD = sorted({1, 2, 3, 5, 6, 7, 1000, *POWERS, *FOURS})


def permutation(length: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return feistel(np.arange(length, dtype=np.uint64), length, round_keys(seed, epoch))


def is_bijection(values: np.ndarray) -> bool:
    return bool(values.min() == 0 and values.max() == len(values) - 1 and (np.bincount(values) == 1).all())


# ------------------------------------------------------------------------------------------- bijection


@pytest.mark.parametrize("length", AWKWARD)
def test_feistel_is_a_bijection_at_the_awkward_lengths(length: int) -> None:
    assert is_bijection(permutation(length, seed=length))


@given(st.integers(1, 5000), st.integers(0, 2**70), st.integers(0, 10**9))
def test_feistel_is_a_bijection_at_any_length_seed_and_epoch(length: int, seed: int, epoch: int) -> None:
    assert is_bijection(permutation(length, seed, epoch))


def test_the_check_would_see_the_fault_of_a_width_taken_from_the_largest_index() -> None:
    """The control: a network one bit too narrow, as log2 of the largest index gives at 2**k + 1."""
    length = 65537
    narrow = order._network(np.arange(length, dtype=np.uint64), 16, round_keys(0, 0)).astype(np.int64)
    assert not is_bijection(narrow)


@pytest.mark.parametrize("length", [2**32 + 1, 10**12, order.LONGEST])
def test_feistel_stays_inside_and_apart_at_lengths_that_nobody_can_enumerate(length: int) -> None:
    for start in (0, length // 2, length - 3000):
        values = EpochOrder("feistel", 1, length).indices(2, start, start + 3000)
        assert len(np.unique(values)) == 3000 and values.min() >= 0 and values.max() < length


# --------------------------------------------------------------------------------------------- quality


def test_few_examples_come_in_all_orders_about_equally_often() -> None:
    """Chi-square over the 24 orders of 4 and the 120 of 5; at most 1.5 times its expectation (1 +- 0.3 and 0.13)."""
    for length, draws in ((4, 1200), (5, 3600)):
        counts = dict.fromkeys(permutations(range(length)), 0)
        for seed in range(draws):
            counts[tuple(permutation(length, seed).tolist())] += 1
        expected = draws / len(counts)
        chi = sum((count - expected) ** 2 / expected for count in counts.values())
        assert chi / (len(counts) - 1) < 1.5


@pytest.mark.parametrize("length", [300, 1000, 4097, 65537])
def test_no_structure_is_left_in_the_order(length: int) -> None:
    """Against what a uniform permutation gives, each bound some five standard deviations wide."""
    epochs = [permutation(length, 3, epoch) for epoch in range(20)]
    positions = np.arange(length)
    moved = np.mean([np.abs(p - positions).mean() for p in epochs]) / length
    assert abs(moved - 1 / 3) < 5 * 0.25 / np.sqrt(20 * length)
    neighbours = sum(int((np.abs(np.diff(p)) == 1).sum()) for p in epochs)
    assert neighbours < 40 + 5 * np.sqrt(40)  # 2 an epoch
    fixed = sum(int((p == positions).sum()) for p in epochs)
    assert fixed < 20 + 5 * np.sqrt(20)  # 1 an epoch
    for first, second in zip(epochs, epochs[1:], strict=False):
        assert abs(np.corrcoef(first, second)[0, 1]) < 6 / np.sqrt(length)
        assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 6 / np.sqrt(length)


@pytest.mark.parametrize("kind", ["randperm", "feistel"])
def test_seed_and_epoch_are_hashed_and_not_added(kind: str) -> None:
    def whole(seed: int, epoch: int) -> list[int]:
        return EpochOrder(kind, seed, 50).indices(epoch, 0, 50).tolist()  # type: ignore[arg-type]

    different = {tuple(whole(seed, epoch)) for seed in range(4) for epoch in range(4)}
    assert len(different) == 16
    assert whole(3, 2) == whole(3, 2)


# ----------------------------------------------------------------------------------- slices and starts


@pytest.mark.parametrize("kind", ["randperm", "feistel"])
@given(data=st.data(), length=st.integers(1, 40_000))
def test_any_slice_equals_the_slice_of_the_whole(kind: str, data: st.DataObject, length: int) -> None:
    start = data.draw(st.integers(0, length))
    stop = data.draw(st.integers(start, length))
    whole = EpochOrder(kind, 9, length).indices(1, 0, length)  # type: ignore[arg-type]
    fresh = EpochOrder(kind, 9, length)  # type: ignore[arg-type]
    assert np.array_equal(fresh.indices(1, start, stop), whole[start:stop])
    assert np.array_equal(fresh.indices(1, start, stop), whole[start:stop])  # from what is kept
    assert fresh.indices(1, start, stop).dtype == np.int64


def test_K01_02_the_second_epoch_is_the_same_after_a_visit_to_another() -> None:
    for kind in ("randperm", "feistel"):
        some = EpochOrder(kind, 9, 100)  # type: ignore[arg-type]
        first, second = some.indices(0, 0, 100), some.indices(1, 0, 100)
        assert not np.array_equal(first, second)
        assert np.array_equal(some.indices(0, 40, 60), first[40:60])
        assert sorted(second) == list(range(100))


def test_what_is_handed_out_may_be_written_to() -> None:
    some = EpochOrder("randperm", 0, 10)
    before = some.indices(0, 0, 10).tolist()
    some.indices(0, 0, 10)[:] = 0
    assert some.indices(0, 0, 10).tolist() == before


def test_feistel_needs_no_more_memory_for_more_examples() -> None:
    def peak(length: int) -> int:
        tracemalloc.start()
        EpochOrder("feistel", 0, length).indices(0, length - 70, length - 6)
        return tracemalloc.get_traced_memory()[1]

    peak(10**5)
    small, large = peak(10**5), peak(10**8)
    tracemalloc.stop()
    assert large < 1.2 * small < 2e6


def test_the_feistel_order_needs_no_torch() -> None:
    code = "import sys; from labkit.order import EpochOrder; EpochOrder('feistel', 0, 10**8).indices(0, 10, 74);"
    code += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


# --------------------------------------------------------------------------------- cursor, cut, digest


@given(st.integers(1, 60), st.integers(1, 70))
def test_a_cursor_walks_through_epochs_without_loss(length: int, batch: int) -> None:
    cursor, seen = Cursor(), []
    while cursor.epoch < 3:
        n = min(batch, length - cursor.examples)
        seen += [(cursor.epoch, cursor.examples + i) for i in range(n)]
        cursor = cursor.advanced(n, length)
    assert seen == [(epoch, position) for epoch in range(3) for position in range(length)]
    assert cursor == Cursor(3, 0)


@pytest.mark.parametrize("n", [-1, 6])
def test_a_cursor_never_crosses_the_end_of_an_epoch(n: int) -> None:
    with pytest.raises(StateError, match="0 to 5"):
        Cursor(0, 5).advanced(n, 10)


@given(st.integers(0, 300), st.lists(st.integers(1, 50), max_size=5))
def test_cuts_cover_an_update_in_order_with_the_sizes_in_turn(n: int, sizes: list[int]) -> None:
    pieces = cut(n, sizes)
    assert [i for piece in pieces for i in range(n)[piece]] == list(range(n))
    lengths = [piece.stop - piece.start for piece in pieces]
    assert all(length > 0 for length in lengths)
    if sizes:
        assert lengths[:-1] == [sizes[i % len(sizes)] for i in range(len(lengths) - 1)]
        assert not lengths or lengths[-1] <= sizes[(len(lengths) - 1) % len(sizes)]
    else:
        assert len(pieces) == (n > 0)


def test_a_digest_tells_order_and_content_apart_whatever_the_integer_type() -> None:
    values = np.array([3, 1, 2])
    assert digest(values) == digest(values.astype(np.int32)) == digest(np.array([9, 3, 1, 2])[1:])
    assert len({digest(values), digest(values[::-1]), digest(values[:2]), digest(values + 1)}) == 4
    assert len(digest(values)) == 16


# ------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("length", [0, -1, 2**63])
def test_a_data_set_without_a_usable_length_is_refused(length: int) -> None:
    with pytest.raises(DataError, match="cannot be ordered"):
        EpochOrder("feistel", 0, length)


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ConfigError, match="'randperm' or 'feistel'"):
        EpochOrder("sorted", 0, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("epoch", "start", "stop"), [(0, 0, 11), (0, -1, 2), (0, 5, 4), (-1, 0, 2)])
def test_positions_outside_the_epoch_are_refused(epoch: int, start: int, stop: int) -> None:
    with pytest.raises(StateError, match="within 0 to 10"):
        EpochOrder("feistel", 0, 10).indices(epoch, start, stop)


def test_a_microbatch_size_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        cut(10, (4, 0))
