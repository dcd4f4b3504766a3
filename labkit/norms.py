"""Gradient norms: measured once over all tensors, safe against overflow, and clipping that keeps direction (lesson 07).

Everything here works on lists of tensors and waits for the device once, however many tensors there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from labkit.errors import ConfigError, NonfiniteError, RecipeError, StateError

# Between these the squares of float32 and bfloat16 entries neither overflow nor vanish, and the plain norm is right.
SAFE_LOW, SAFE_HIGH = 1e-15, 1e15


def gradient_norm(gradients: Sequence[Tensor]) -> float:
    """The 2-norm of all entries together; 0.0 for no gradients; NaN or inf when an entry is.

    In the ordinary range this is, bit for bit, torch.nn.utils.get_total_norm. Squares of large finite float32 entries
    overflow (3e19 and 4e19 have norm 5e19, the plain one says inf) and those of tiny ones vanish: then the entries are
    first divided by the largest of them, in float64. Raises RecipeError for sparse gradients.
    """
    tensors = list(gradients)
    if not tensors:
        return 0.0
    with torch.no_grad():
        try:
            norms = torch._foreach_norm(tensors)
        except NotImplementedError as error:
            raise RecipeError("a sparse gradient", "dense ones", "use nn.Embedding(sparse=False)") from error
        norm = float(torch.linalg.vector_norm(_stacked(norms)))
        return norm if SAFE_LOW < norm < SAFE_HIGH else _careful_norm(tensors, norm)


def _stacked(norms: Sequence[Tensor]) -> Tensor:
    first = norms[0].device
    return torch.stack([norm if norm.device == first else norm.to(first) for norm in norms])


def _careful_norm(tensors: list[Tensor], plain: float) -> float:
    largest = _largest(tensors)
    if largest == 0.0 or not math.isfinite(largest):
        return plain
    scaled = [tensor.abs().double() / largest for tensor in tensors]
    return largest * float(torch.linalg.vector_norm(_stacked(torch._foreach_norm(scaled))))


def _largest(tensors: Sequence[Tensor]) -> float:
    filled = [tensor for tensor in tensors if tensor.numel()]
    return float(_stacked(torch._foreach_norm(filled, math.inf)).max()) if filled else 0.0


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """True when no entry is NaN or infinite. Integer tensors always are."""
    with torch.no_grad():
        return math.isfinite(_largest([t for t in tensors if t.is_floating_point() or t.is_complex()]))


def first_nonfinite(named: Iterable[tuple[str, Tensor | None]]) -> str | None:
    """Name of the first tensor, in the order given, that holds a NaN or an infinity; None when there is none.

    In the good case the device is waited for once; only the search for a culprit asks tensor by tensor.
    """
    present = [(name, tensor) for name, tensor in named if tensor is not None]
    if all_finite(tensor for _, tensor in present):
        return None
    return next(name for name, tensor in present if not all_finite([tensor]))


def clip_(gradients: Sequence[Tensor], norm: float, max_norm: float) -> bool:
    """Shorten the gradients in place to max_norm when norm, their gradient_norm, is above it; True when it was.

    Below the limit nothing is touched. Above it the factor is max_norm / (norm + 1e-6), bit for bit that of
    torch.nn.utils.clip_grad_norm_. All tensors get one factor, so the direction stays, for huge finite gradients too.
    Raises NonfiniteError for a norm that is not finite: clipping would spread one bad entry to all.
    """
    if not max_norm > 0.0:
        raise ConfigError(f"a norm limit of {max_norm}", "a number above zero", "leave max_norm out for no clipping")
    if not math.isfinite(norm):
        raise NonfiniteError(f"a gradient norm of {norm}", "a finite one", "refuse this update, do not clip it")
    if norm <= max_norm:
        return False
    tensors = list(gradients)
    dtype = tensors[0].dtype
    with torch.no_grad():
        if norm < SAFE_HIGH and dtype is not torch.float16:
            torch._foreach_mul_(tensors, float(max_norm / (torch.tensor(norm, dtype=dtype) + 1e-6)))
        else:
            root = math.sqrt(max_norm / norm)  # the factor itself may be too small for the dtype, its root is not
            torch._foreach_mul_(tensors, root)
            torch._foreach_mul_(tensors, root)
    return True


def snapshot(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Copies of the tensors, without a graph: what update_norm and layer_norms compare with."""
    return [parameter.detach().clone() for parameter in parameters]


def update_norm(parameters: Sequence[Tensor], before: Sequence[Tensor]) -> float:
    """The 2-norm of how far the parameters moved since snapshot(parameters)."""
    if len(parameters) != len(before):
        raise StateError(f"{len(parameters)} parameters, {len(before)} in the snapshot", "equally many", "take it anew")
    with torch.no_grad():
        return gradient_norm(torch._foreach_sub(tuple(parameters), tuple(before)))


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """2-norms of one layer. gradient is None when no backward pass reached it, which is not the same as 0.0.

    update and ratio (update / weight) are None unless a snapshot was given; ratio also for a weight of zero.
    """

    gradient: float | None
    weight: float
    update: float | None = None
    ratio: float | None = None


def layer_norms(model: nn.Module, before: Sequence[Tensor] | None = None) -> dict[str, LayerNorm]:
    """Norms of each layer, in the model's order. A layer is a module that holds parameters itself; "" is the model.

    before: snapshot(model.parameters()), taken before the update, for update and ratio. A shared parameter counts in
    the first layer that holds it. For monitoring now and then; the update itself does not need it.
    """
    names, parameters = [name for name, _ in model.named_parameters()], list(model.parameters())
    if before is not None and len(before) != len(parameters):
        raise StateError(f"{len(parameters)} parameters, {len(before)} in the snapshot", "equally many", "take it anew")
    layers: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        layers.setdefault(name.rpartition(".")[0], []).append(position)
    with torch.no_grad():
        weights = _each(parameters)
        gradients = _each([parameter.grad for parameter in parameters])
        moved: list[Tensor | None] = [None] * len(parameters)
        if before is not None and parameters:
            moved = [now - then for now, then in zip(parameters, before, strict=True)]
        updates = _each(moved)
    found: dict[str, LayerNorm] = {}
    for layer, positions in layers.items():
        weight, gradient, update = (_combined([norms[i] for i in positions]) for norms in (weights, gradients, updates))
        ratio = update / weight if update is not None and weight else None
        found[layer] = LayerNorm(gradient=gradient, weight=weight or 0.0, update=update, ratio=ratio)
    return found


def _each(tensors: Sequence[Tensor | None]) -> list[float | None]:
    """The norm of each tensor, None where there is none."""
    present = [tensor for tensor in tensors if tensor is not None]
    plain = iter(_stacked(torch._foreach_norm(present)).tolist() if present else [])
    norms = [None if tensor is None else (tensor, next(plain)) for tensor in tensors]
    return [
        None if pair is None else pair[1] if SAFE_LOW < pair[1] < SAFE_HIGH else _careful_norm([pair[0]], pair[1])
        for pair in norms
    ]


def _combined(norms: Sequence[float | None]) -> float | None:
    present = [norm for norm in norms if norm is not None]
    if any(math.isnan(norm) for norm in present):
        return math.nan  # hypot would say inf for (inf, nan)
    return math.hypot(*present) if present else None
