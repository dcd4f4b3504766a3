"""Promises of labkit.device."""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from labkit.device import available, describe, peak_memory_bytes, resolve, synchronize, to_device
from labkit.errors import ConfigError

CPU = torch.device("cpu")
META = torch.device("meta")  # a second device that every machine has
Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    note: str
    derived: torch.Tensor = field(init=False, default_factory=lambda: torch.zeros(1))

    def __post_init__(self) -> None:
        if self.x.device.type == "meta":
            raise AssertionError("moving a batch must not build it anew")


@pytest.mark.parametrize("name", ["cpu", "cpu:0", torch.device("cpu")])
def test_resolve_gives_the_cpu(name: str | torch.device) -> None:
    assert resolve(name) == CPU


@pytest.mark.parametrize("name", ["cuba", "gpu", "", "meta", "cpu:x", "cuda:-1"])
def test_resolve_refuses_an_unknown_name_and_lists_the_known(name: str) -> None:
    with pytest.raises(ConfigError, match="cpu, cuda"):
        resolve(name)


def test_resolve_says_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'cuda'"):
        resolve("cuba")


def test_resolve_refuses_a_device_this_machine_lacks() -> None:
    with pytest.raises(ConfigError, match="not available.*one of cpu"):
        resolve(f"cuda:{torch.cuda.device_count() + 3}")


def test_resolved_cuda_equals_the_device_of_its_tensors(cuda: torch.device) -> None:
    assert torch.zeros(1, device="cuda").device == resolve("cuda")


def test_available_names_resolve() -> None:
    assert [str(resolve(name)) for name in available()] == available()


def test_to_device_walks_every_structure_and_keeps_its_kind() -> None:
    x = torch.ones(2)
    batch: dict[str, Any] = {
        "list": [x, "text", 3, None],
        "tuple": (x, (x,)),
        "named": Pair(x, [x]),
        "ordered": OrderedDict(a=x),
        "default": defaultdict(list, a=x),
        "proxy": MappingProxyType({"a": x}),
        "dataclass": Frozen(x, "note"),
        "array": np.ones(2),
        "type": Frozen,
    }
    moved = to_device(batch, META)
    assert moved["list"][0].device == META and moved["list"][1:] == ["text", 3, None]
    assert type(moved["tuple"]) is tuple and moved["tuple"][1][0].device == META
    assert type(moved["named"]) is Pair and moved["named"].y[0].device == META
    assert type(moved["ordered"]) is OrderedDict and moved["ordered"]["a"].device == META
    assert type(moved["default"]) is defaultdict and moved["default"]["new"] == []
    assert moved["proxy"]["a"].device == META
    assert type(moved["dataclass"]) is Frozen and moved["dataclass"].note == "note"
    assert moved["dataclass"].x.device == moved["dataclass"].derived.device == META
    assert moved["array"] is batch["array"] and moved["type"] is Frozen
    assert batch["dataclass"].x.device == batch["ordered"]["a"].device == batch["default"]["a"].device == CPU


def test_to_device_lets_a_packed_sequence_move_itself() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    assert isinstance(to_device(packed, CPU), PackedSequence)


def test_to_device_takes_a_name_and_copies_nothing_that_is_there() -> None:
    x = torch.ones(2)
    assert to_device([x], "cpu")[0] is x


def test_to_device_reaches_cuda(cuda: torch.device) -> None:
    moved = to_device({"x": [torch.arange(4)]}, cuda)["x"][0]
    assert moved.device == cuda and moved.tolist() == [0, 1, 2, 3]


def test_peak_memory_of_the_process_sees_a_large_block_that_is_gone() -> None:
    before = peak_memory_bytes(CPU)
    assert before is not None and before > 10_000_000
    block = np.ones(30_000_000)  # 240 MB
    during = peak_memory_bytes(CPU)
    del block
    after = peak_memory_bytes(CPU)
    assert during is not None and after is not None and during > 240_000_000
    assert after > 0.99 * during  # the kernel adds its per-thread counters up now and then, not at each read


def test_peak_memory_on_cuda_is_that_of_the_allocator(cuda: torch.device) -> None:
    torch.cuda.reset_peak_memory_stats(cuda)
    before = peak_memory_bytes(cuda)
    block = torch.ones(1_000_000, device=cuda)
    after = peak_memory_bytes(cuda)
    assert before is not None and after is not None and after - before >= block.nbytes


def test_synchronize_on_cpu_returns_at_once() -> None:
    synchronize(CPU)


def test_describe_is_plain_and_names_the_instruction_set() -> None:
    facts = describe(CPU)
    assert json.loads(json.dumps(facts)) == facts
    assert facts["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert facts["device"] == "cpu" and facts["name"] and "math" in facts["attention"]


def test_describe_cuda_has_driver_and_capability(cuda: torch.device) -> None:
    facts = describe(cuda)
    assert facts["name"] == torch.cuda.get_device_name(cuda)
    assert facts["memory_bytes"] > 0 and "." in facts["capability"]
