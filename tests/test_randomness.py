"""What keys and captures promise: the same stream in every process, and all streams put back or none touched."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit import randomness
from labkit.errors import RandomnessError
from labkit.randomness import capture, check_generators, differences, key, numpy_generator, preserved, restore

from labkit.randomness import seed_all, torch_generator  # isort: skip

ROOT = Path(__file__).parent.parent
BIT_GENERATORS = [np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64]


def explicit() -> dict[str, Any]:
    return {
        "torch": torch.Generator().manual_seed(3),
        **{kind.__name__: np.random.Generator(kind(4)) for kind in BIT_GENERATORS},
    }


def draws(generators: dict[str, Any]) -> dict[str, Any]:
    """The next three numbers of every stream, normals included: their second half waits in some states."""
    found: dict[str, Any] = {
        "python": [random.random(), random.gauss(0, 1), random.gauss(0, 1)],
        "numpy": [np.random.rand(), np.random.randn(), np.random.randn()],
        "torch": [torch.rand(1).item(), torch.randn(1).item(), torch.randn(20).tolist()],
    }
    for name, generator in generators.items():
        if isinstance(generator, torch.Generator):
            found[f"generator {name!r}"] = torch.randn(3, generator=generator).tolist()
        else:
            halves = generator.integers(0, 9, 3, dtype=np.int32).tolist()  # leaves half a word behind
            found[f"generator {name!r}"] = [*halves, *generator.standard_normal(3).tolist()]
    return found


def travelled(saved: dict[str, Any]) -> dict[str, Any]:
    """Through a file and restricted loading."""
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# ------------------------------------------------------------------------------------------------ keys


def test_a_key_is_the_same_in_every_process() -> None:
    code = "from labkit.randomness import key, numpy_generator as g; print(key('a', 1, -2), g('a', 1).integers(2**60))"
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=env)
        assert done.stdout == f"{key('a', 1, -2)} {numpy_generator('a', 1).integers(2**60)}\n"


parts = st.lists(st.one_of(st.integers(), st.text(max_size=5)), max_size=4)


@given(parts, parts)
def test_different_parts_give_different_keys_in_63_bits(first: list[Any], second: list[Any]) -> None:
    assert (key(*first) == key(*second)) == (first == second)
    assert 0 <= key(*first) < 2**63


def test_parts_are_not_glued_added_or_mistaken_for_text() -> None:
    for a, b in [((1, 0), (0, 1)), ((12,), (1, 2)), ((1,), ("1",)), (("a", "b"), ("ab",)), (("a, 'b",), ("a", "b"))]:
        assert key(*a) != key(*b)
    assert key(np.int64(3)) == key(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        key(1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [torch_generator, numpy_generator])
def test_generators_for_the_same_parts_agree_and_for_others_do_not(make: Callable[..., Any]) -> None:
    def first(*parts: Any) -> int:
        one = make(*parts)
        if isinstance(one, torch.Generator):
            return int(torch.randint(2**60, (1,), generator=one))
        return int(one.integers(2**60))

    assert first("noise", 1, 2) == first("noise", 1, 2)
    assert len({first("noise", seed, epoch) for seed in range(10) for epoch in range(10)}) == 100
    assert first("noise", 1, 2) != first("crop", 1, 2)


def test_neighbouring_keys_give_streams_without_relation() -> None:
    rows = np.stack([numpy_generator(0, epoch, 7).standard_normal(400) for epoch in range(20)])
    between = np.corrcoef(rows)[np.triu_indices(20, 1)]
    assert np.abs(between).max() < 0.25  # five standard deviations of 1 / sqrt(400)


def test_making_a_generator_moves_no_global_stream() -> None:
    before = capture()
    torch_generator(1)
    numpy_generator(1)
    assert differences(before, capture()) == []


def test_seed_all_seeds_every_stream_and_each_with_its_own_key() -> None:
    seed_all("here", 1)
    first = draws({})
    seed_all("here", 1)
    assert draws({}) == first
    seed_all("here", 2)
    other = draws({})
    assert all(other[name] != first[name] for name in first)
    seed_all(0)
    assert random.getstate()[1][:5] != tuple(np.random.get_state()[1][:5].tolist())  # type: ignore[index]


# --------------------------------------------------------------------------------------------- capture


def test_K07_07_every_stream_continues_after_a_capture_went_through_a_file() -> None:
    generators = explicit()
    draws(generators)  # somewhere in the middle of things
    saved = travelled(capture(generators))
    expected = draws(generators)
    seed_all(99)
    fresh = explicit()
    restore(saved, fresh)
    assert draws(fresh) == expected
    assert differences(saved, capture(fresh)) == list(expected)


def test_a_capture_is_a_photograph_and_not_a_window() -> None:
    generators = explicit()
    saved = capture(generators)
    again = capture(generators)
    draws(generators)
    assert differences(saved, again) == []
    assert differences(saved, capture(generators)) == list(draws(generators))


def test_only_plain_values_and_tensors_are_captured() -> None:
    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(type(name) in (str, int) and plain(item) for name, item in value.items())
        if isinstance(value, list):
            return all(map(plain, value))
        return type(value) in (str, int, float, type(None), torch.Tensor)

    assert plain(capture(explicit()))


@pytest.mark.parametrize("raises", [False, True])
def test_preserved_puts_every_stream_back_also_after_an_exception(raises: bool) -> None:
    generators = explicit()
    before = capture(generators)
    try:
        with preserved(generators):
            draws(generators)
            seed_all(5)
            if raises:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert differences(before, capture(generators)) == []


def test_callers_kept_undoes_a_seed_of_every_global_stream() -> None:
    before = capture()
    with pytest.raises(KeyboardInterrupt), randomness.callers_kept():
        seed_all(5)
        draws({})
        raise KeyboardInterrupt
    assert differences(before, capture()) == []


# -------------------------------------------------------------------------------------- all or nothing


def without(saved: dict[str, Any], *path: str) -> dict[str, Any]:
    inner = saved
    for name in path[:-1]:
        inner = inner[name]
    del inner[path[-1]]
    return saved


STREAMS = [("python",), ("numpy",), ("torch",), ("cuda",), ("generators",)]
STREAMS += [("generators", name) for name in explicit()]


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path[-1])
def test_K07_07_a_missing_stream_is_named_and_nothing_is_touched(path: tuple[str, ...]) -> None:
    refused(without(capture(explicit()), *path), match=path[-1])


def refused(saved: Any, match: str, generators: dict[str, Any] | None = None, devices: Any = ()) -> None:
    generators = explicit() if generators is None else generators
    seed_all(1)
    before = capture(generators)
    with pytest.raises(RandomnessError, match=match):
        restore(saved, generators, devices)
    assert differences(before, capture(generators)) == []


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "python": lambda s: s["python"].__setitem__(1, s["numpy"]["state"]["key"]),
    "numpy": lambda s: s["numpy"].pop("state"),
    "torch": lambda s: s.__setitem__("torch", s["torch"][:100]),
    "'torch'": lambda s: s["generators"]["torch"].__setitem__("state", torch.zeros(5)),
    "'Philox'": lambda s: s["generators"]["Philox"]["state"].pop("state"),
    "'SFC64'": lambda s: s["generators"]["SFC64"].__setitem__("state", 3),
}


@pytest.mark.parametrize("stream", DAMAGE)
def test_a_damaged_stream_is_named_and_nothing_is_touched(stream: str) -> None:
    saved = capture(explicit())
    DAMAGE[stream](saved)
    refused(saved, match=stream)


def test_another_kind_of_generator_is_refused_by_name() -> None:
    saved = capture({"noise": np.random.Generator(np.random.PCG64())})
    for other in (np.random.Generator(np.random.Philox()), torch.Generator()):
        refused(saved, match="'noise' is of kind .*PCG64", generators={"noise": other})


def test_a_generator_that_is_not_registered_any_more_is_refused_by_name() -> None:
    refused(capture({"noise": torch.Generator()}), match="'noise' was saved but is not registered", generators={})
    refused(capture(), match="no generator 'noise'", generators={"noise": torch.Generator()})


def test_K07_05_another_number_of_devices_is_refused_with_both_numbers() -> None:
    saved = capture(explicit())
    saved["cuda"] = {index: torch.zeros(16, dtype=torch.uint8) for index in range(8)}
    refused(saved, match="8 CUDA devices.*the 0 in use")


def test_one_stream_under_two_names_is_refused() -> None:
    one, numpy_one = torch.Generator(), np.random.default_rng(0)
    twin = np.random.Generator(numpy_one.bit_generator)
    for generators in ({"a": one, "b": one}, {"a": numpy_one, "b": twin}):
        with pytest.raises(RandomnessError, match="'a' and 'b' are one and the same"):
            check_generators(generators)  # type: ignore[arg-type]
    with pytest.raises(RandomnessError, match=r"torch \(global\)"):
        capture({"mine": torch.default_generator})
    check_generators({"a": torch.Generator(), "b": torch.Generator()})


def test_what_is_no_generator_is_refused() -> None:
    with pytest.raises(RandomnessError, match="'noise'.*RandomState"):
        capture({"noise": np.random.RandomState(0)})  # type: ignore[dict-item]


def test_a_device_whose_stream_nobody_saves_is_refused() -> None:
    assert capture(devices=[torch.device("cpu")])["cuda"] == {}
    with pytest.raises(RandomnessError, match="meta"):
        capture(devices=[torch.device("meta")])


def test_differences_names_what_one_of_two_captures_lacks() -> None:
    assert differences(capture({"a": torch.Generator()}), capture()) == ["generator 'a'"]
    assert differences(capture(), capture({"a": torch.Generator()})) == ["generator 'a'"]


# ------------------------------------------------------------------------------------------------ CUDA


@pytest.mark.cuda
def test_K07_06_cuda_streams_come_back_also_from_a_file_mapped_to_the_device(cuda: torch.device) -> None:
    generators = {"mine": torch.Generator(cuda).manual_seed(1)}

    def numbers() -> list[float]:
        own = torch.rand(3, device=cuda, generator=generators["mine"])
        return [*torch.rand(3, device=cuda).tolist(), *own.tolist()]

    saved = capture(generators, [cuda])
    expected = numbers()
    file = io.BytesIO()
    torch.save(saved, file)
    for place in ("cpu", str(cuda), lambda storage, where: storage):
        file.seek(0)
        restore(torch.load(file, map_location=place, weights_only=True), generators, [cuda])
        assert numbers() == expected
    with pytest.raises(RandomnessError, match="1 CUDA devices.*the 0 in use"):
        restore(saved, generators)


@pytest.mark.cuda
def test_seed_all_reaches_the_devices(cuda: torch.device) -> None:
    seed_all(1)
    first = torch.rand(3, device=cuda)
    randomness.seed_all(1)
    assert torch.equal(torch.rand(3, device=cuda), first)


@pytest.mark.cuda
def test_callers_kept_includes_the_devices(cuda: torch.device) -> None:
    torch.rand(1, device=cuda)  # CUDA is in use from here on
    before = capture(devices=[cuda])
    with randomness.callers_kept():
        seed_all(5)
        torch.rand(3, device=cuda)
    assert differences(before, capture(devices=[cuda])) == []
