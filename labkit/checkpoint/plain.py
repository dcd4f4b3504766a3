"""Turn a state into what restricted loading accepts: names, tensors, plain values, and nothing else. Lesson 05.

Tensors that share memory still share it afterwards (a tied weight is stored once), and a view brings only its own
elements along, not the storage that it was cut from. Equal payloads become equal bytes: strings are interned, because
pickle writes one string object met twice otherwise than two equal ones.
"""

from __future__ import annotations

import math
import os
import sys
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labkit.checkpoint.memory import arranged, elements, regions_of, run
from labkit.errors import CheckpointError

_DEEPEST = 100
_PLAIN = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device)


@dataclass
class _Slot:
    """The place of a tensor in the payload while its memory is being arranged."""

    number: int


class Plan:
    """A payload that was looked through and can be saved. Raises CheckpointError naming the entry that cannot."""

    def __init__(self, payload: Mapping[str, Any]) -> None:
        self._tensors: list[Tensor] = []
        self._interned: dict[Any, Any] = {}
        if not isinstance(payload, Mapping):
            raise CheckpointError(f"a payload of type {type(payload).__name__}", "a dictionary", "give the parts names")
        self._outline = self._walk(payload, "payload", ())
        self._regions = regions_of(self._tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of tensor data that the file will hold: shared memory once, views at their own size."""
        return sum(
            elements(self._tensors, region) * self._tensors[region.members[0]].itemsize for region in self._regions
        )

    @property
    def count(self) -> int:
        """Number of tensors."""
        return len(self._tensors)

    def build(self, copy: bool) -> dict[str, Any]:
        """The plain payload, all on the CPU. With copy nothing in it shares memory with the live objects."""
        made, copies = arranged(self._tensors, self._regions, copy)
        run(copies)
        return _filled(self._outline, made)

    def _walk(self, value: Any, where: str, above: tuple[int, ...]) -> Any:
        kind = type(value)
        if isinstance(value, Tensor):
            self._tensors.append(_bare_tensor(value, where))
            return _Slot(len(self._tensors) - 1)
        if kind is str:
            return sys.intern(value)
        if kind in _PLAIN:
            return self._interned.setdefault((kind, value), value) if kind in (bytes, torch.device) else value
        if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
            return _number(value, where)
        if id(value) in above:
            raise CheckpointError(f"{where} contains itself", "a payload without cycles", "leave the reference out")
        if len(above) >= _DEEPEST:
            raise CheckpointError(f"{where} lies {_DEEPEST} levels deep", "a flatter payload", "flatten it")
        above = (*above, id(value))
        if isinstance(value, Mapping):
            return self._walk_mapping(value, where, above)
        if kind in (list, tuple, torch.Size):
            items = [self._walk(item, f"{where}[{index}]", above) for index, item in enumerate(value)]
            return items if kind is list else tuple(items)
        raise CheckpointError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}", "names, tensors and plain values", _advice(value)
        )

    def _walk_mapping(self, value: Mapping[Any, Any], where: str, above: tuple[int, ...]) -> Any:
        kind = type(value) if type(value) in (OrderedDict, Counter) else dict
        made: Any = kind()
        for name, item in value.items():
            key = self._walk(name, f"the name {name!r} in {where}", above)
            if type(key) not in (type(None), bool, int, str, bytes):
                raise CheckpointError(
                    f"{where} has {name!r} as a name", "names that are text or whole numbers", "rename it"
                )
            made[key] = self._walk(item, f"{where}[{key!r}]", above)
        metadata = getattr(value, "_metadata", None)  # module versions, which Module.load_state_dict asks for
        if kind is OrderedDict and metadata is not None:
            made._metadata = self._walk(metadata, f"{where}._metadata", above)
        return made


def plain(payload: Mapping[str, Any], copy: bool) -> dict[str, Any]:
    """The payload as restricted loading will give it back; with copy, in memory of its own."""
    return Plan(payload).build(copy)


def payload_bytes(payload: Mapping[str, Any]) -> int:
    """Bytes of tensor data that a checkpoint of this payload will hold. Nothing is copied."""
    return Plan(payload).nbytes


def plain_json(value: Any, where: str = "facts", depth: int = 0) -> Any:
    """Facts for the manifest: JSON values only. Numbers that are not finite become "nan", "inf", "-inf".

    Raises CheckpointError naming the entry that is none of these.
    """
    if depth > _DEEPEST:
        raise CheckpointError(f"{where} lies {_DEEPEST} levels deep", "flatter facts", "flatten them")
    if isinstance(value, Tensor) and value.ndim == 0:
        value = value.item()
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = _number(value, where)
    if type(value) is float and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if type(value) in (type(None), bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        wrong = [name for name in value if type(name) is not str]
        if wrong:
            raise CheckpointError(f"{where} has {wrong[0]!r} as a name", "names that are text", "write str(name)")
        return {name: plain_json(item, f"{where}[{name!r}]", depth + 1) for name, item in value.items()}
    if type(value) in (list, tuple, torch.Size):
        return [plain_json(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise CheckpointError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}", "JSON values", _advice(value)
    )


def all_finite(payload: Any) -> bool:
    """True when no floating tensor in a plain payload holds nan or infinity."""
    if isinstance(payload, Tensor):
        if not (payload.is_floating_point() or payload.is_complex()):
            return True
        wide = payload.float() if payload.dtype.itemsize == 1 else payload
        # A finite sum proves it in one pass and without a temporary; an overflow of large numbers is looked at closely.
        return bool(torch.isfinite(wide.sum())) or bool(torch.isfinite(wide).all())
    if isinstance(payload, Mapping):
        return all(all_finite(item) for item in payload.values())
    return all(all_finite(item) for item in payload) if isinstance(payload, list | tuple) else True


def _advice(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return "store torch.from_numpy(array) instead"
    if isinstance(value, os.PathLike):
        return "store str(path) instead: a path of one system cannot be built on another"
    if isinstance(value, set | frozenset):
        return "store sorted(values) instead: the order of a set changes from process to process"
    return "store its value as text, a number, a list or a dictionary; restricted loading refuses objects"


def _number(value: Any, where: str) -> Any:
    number = value.item()
    if type(number) not in (bool, int, float, str, bytes):
        raise CheckpointError(
            f"{where} is a numpy {value.dtype}", "a number or text", "convert it to a plain number first"
        )
    return sys.intern(number) if type(number) is str else number


def _bare_tensor(value: Tensor, where: str) -> Tensor:
    if value.layout is not torch.strided or value.is_quantized or value.is_nested or value.device.type == "meta":
        raise CheckpointError(
            f"{where} is a {value.layout} tensor on {value.device}", "a dense tensor", "convert it first"
        )
    tensor = value.detach().resolve_conj().resolve_neg()
    if type(tensor) is not Tensor:
        raise CheckpointError(f"{where} is a {type(value).__qualname__}", "a plain tensor", "convert it first")
    return tensor


def _filled(outline: Any, tensors: list[Tensor]) -> Any:
    if isinstance(outline, _Slot):
        return tensors[outline.number]
    if isinstance(outline, dict):
        made: Any = type(outline)()
        made.update({name: _filled(item, tensors) for name, item in outline.items()})
        if (metadata := getattr(outline, "_metadata", None)) is not None:
            made._metadata = metadata
        return made
    if isinstance(outline, list):
        return [_filled(item, tensors) for item in outline]
    return tuple(_filled(item, tensors) for item in outline) if isinstance(outline, tuple) else outline
