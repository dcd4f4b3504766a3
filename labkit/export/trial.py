"""Trying a rebuilt model on real examples before it is published: the same bits out, or it is not. Lesson 09."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

import torch
from torch import Tensor, nn

from labkit.device import to_device
from labkit.errors import ExportError
from labkit.evaluate import batches, leaving_no_trace
from labkit.recipe import Recipe, Splits
from labkit.state import leaf_bytes

EXAMPLES: Final = 64


def real_batches(splits: Splits, recipe: Recipe, device: str) -> list[Any]:
    """The first examples of the validation split (of the training split where there is none), in two batches."""
    data = splits.validation if splits.validation is not None and len(splits.validation) else splits.train
    return [to_device(batch, device) for batch in islice(batches(data, recipe.collate, EXAMPLES // 2, EXAMPLES), 2)]


def equal_on(inputs: list[Any], recipe: Recipe, one: nn.Module, other: nn.Module, what: str) -> None:
    """Raise ExportError when two models differ in one bit of an output or of the objective on any of these batches.

    No tolerance: both do the same operations on the same numbers, so any difference is a fault.
    """
    if not inputs:
        raise ExportError("there is no real example to try it on", "at least one", "give batches of your own")
    for number, batch in enumerate(inputs):
        expected, seen = _outputs(recipe, one, batch), _outputs(recipe, other, batch)
        if [leaf_bytes(t) for t in expected] != [leaf_bytes(t) for t in seen]:
            raise ExportError(
                f"{what} differs on real batch {number}, by {_largest(expected, seen)}",
                "the same bits",
                "see its remarks",
            )


def _outputs(recipe: Recipe, model: nn.Module, batch: Any) -> list[Tensor]:
    with _recorded(model) as found, leaving_no_trace(model), torch.no_grad():
        summed, _ = recipe.objective(model, batch)
    return [*found, summed]


@contextmanager
def _recorded(model: nn.Module) -> Iterator[list[Tensor]]:
    found: list[Tensor] = []
    handle = model.register_forward_hook(lambda module, args, output: found.extend(_tensors(output)))
    try:
        yield found
    finally:
        handle.remove()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value.detach().clone()
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _largest(expected: list[Tensor], seen: list[Tensor]) -> str:
    if [t.shape for t in expected] != [t.shape for t in seen]:
        return "its shape"
    gaps = [(a.double() - b.double()).abs().max().item() for a, b in zip(expected, seen, strict=True) if a.numel()]
    return f"up to {max(gaps, default=0.0):.3g}"
