"""How tensors share memory, and how to arrange it anew: shared stays shared, a view brings no more along. Lesson 05."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from labkit.files import spread

_LARGE = 8 * 1024 * 1024


@dataclass
class Region:
    """A run of elements of one storage that tensors share: elements start to stop, and who looks at them."""

    start: int
    stop: int
    members: list[int] = field(default_factory=list)


def _span(tensor: Tensor) -> int:
    """Elements from the first to the last that a tensor reaches in its storage."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _apart(tensor: Tensor) -> bool:
    """True when no two elements of a tensor lie in one place."""
    reach = 0
    for stride, size in sorted(
        (stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1
    ):
        if stride <= reach:
            return False
        reach += (size - 1) * stride
    return True


def _look(tensor: Tensor) -> tuple[Any, ...]:
    return (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())


def regions_of(tensors: list[Tensor]) -> list[Region]:
    """Group tensors by the memory that they look at: overlapping ranges of one storage and dtype become one region."""
    by_storage: dict[Any, list[int]] = {}
    for number, tensor in enumerate(tensors):
        key: Any = (tensor.untyped_storage()._cdata, tensor.dtype) if tensor.numel() else number
        by_storage.setdefault(key, []).append(number)
    regions: list[Region] = []
    for numbers in by_storage.values():
        open_region: Region | None = None
        for number in sorted(numbers, key=lambda number: tensors[number].storage_offset()):
            start = int(tensors[number].storage_offset())
            stop = start + _span(tensors[number])
            if open_region is None or start >= open_region.stop:
                open_region = Region(start, stop)
                regions.append(open_region)
            open_region.stop = max(open_region.stop, stop)
            open_region.members.append(number)
    return sorted(regions, key=lambda region: min(region.members))


def _gaps(tensors: list[Tensor], region: Region) -> bool:
    """One view (however many names) that steps over elements which nobody saves: it is packed."""
    first = tensors[region.members[0]]
    alone = len({_look(tensors[number]) for number in region.members}) == 1
    return alone and first.numel() < region.stop - region.start


def elements(tensors: list[Tensor], region: Region) -> int:
    """Elements that the file will hold for a region: all of it, or those of a view that is packed."""
    return tensors[region.members[0]].numel() if _gaps(tensors, region) else region.stop - region.start


def arranged(
    tensors: list[Tensor], regions: list[Region], copy: bool
) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
    """New tensors in compact memory, and the copies (target, source) that fill it."""
    made: dict[int, Tensor] = {}
    copies: list[tuple[Tensor, Tensor]] = []
    dtypes: dict[int, set[torch.dtype]] = {}
    for tensor in tensors:
        dtypes.setdefault(tensor.untyped_storage()._cdata, set()).add(tensor.dtype)
    for region in regions:
        first = tensors[region.members[0]]
        if not copy and _whole(tensors, region) and len(dtypes[first.untyped_storage()._cdata]) == 1:
            made.update({number: tensors[number] for number in region.members})
            continue
        if _gaps(tensors, region):
            packed = _memory(first.numel(), first.dtype).view(first.shape)
            copies.append((packed, first))
            made.update({number: packed.view(first.shape) for number in region.members})
            continue
        memory = _memory(region.stop - region.start, first.dtype)
        for number in region.members:
            tensor = tensors[number]
            made[number] = memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - region.start)
        copies += _fills(memory, tensors, region)
    return [made[number] for number in range(len(tensors))], copies


def _memory(elements: int, dtype: torch.dtype) -> Tensor:
    """New memory, not filled: torch.empty fills it where deterministic algorithms are asked for, a copy's price."""
    return torch.empty(0, dtype=dtype).set_(torch.UntypedStorage(elements * dtype.itemsize), 0, (elements,), (1,))


def run(copies: list[tuple[Tensor, Tensor]]) -> None:
    """Fill the new memory; large CPU states with a few threads. Other devices copy here, on the caller's own stream."""
    here = [pair for pair in copies if pair[1].device.type != "cpu"]
    rest = [pair for pair in copies if pair[1].device.type == "cpu"]
    if sum(target.numel() * target.itemsize for target, _ in rest) < _LARGE:
        here, rest = here + rest, []
    for target, source in here:
        target.copy_(source)
    if rest:
        spread(lambda pair: pair[0].copy_(pair[1]), rest)


def _whole(tensors: list[Tensor], region: Region) -> bool:
    """True when the region is all of a CPU storage and one tensor fills it: nothing to gain from a copy."""
    first = tensors[region.members[0]]
    size = (region.stop - region.start) * first.itemsize
    fills = any(
        _span(t) == t.numel() == region.stop - region.start and _apart(t) for t in (tensors[n] for n in region.members)
    )
    return first.device.type == "cpu" and fills and first.untyped_storage().nbytes() == size


def _fills(memory: Tensor, tensors: list[Tensor], region: Region) -> list[tuple[Tensor, Tensor]]:
    views = {_look(tensors[number]): tensors[number] for number in region.members}.values()
    for tensor in views:
        if _span(tensor) == region.stop - region.start and (_apart(tensor) <= (tensor.numel() == _span(tensor))):
            return [(memory, tensor.as_strided((len(memory),), (1,), region.start))]
    memory.zero_()  # what nobody looks at must be neither old memory nor another's data
    fills = []
    for tensor in views:
        offset = tensor.storage_offset()
        if _apart(tensor):
            target = memory.as_strided(tensor.shape, tensor.stride(), offset - region.start)
            fills.append((target, tensor))
        else:
            fills.append(
                (memory[offset - region.start :][: _span(tensor)], tensor.as_strided((_span(tensor),), (1,), offset))
            )
    return fills
