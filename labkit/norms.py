"""Gradient norms: measured once over all tensors, safe against overflow, and clipping that keeps direction (lesson 07).

Everything here works on lists of tensors and waits for the device once, however many tensors there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from labkit.errors import ConfigError, NonfiniteError, StateError

# Between these the squares of float32 and bfloat16 entries neither overflow nor vanish, and the plain norm is right.
SAFE_LOW, SAFE_HIGH = 1e-15, 1e15


def gradient_norm(gradients: Sequence[Tensor]) -> float:
    """The 2-norm of all entries together; 0.0 for no gradients; NaN or inf when an entry is.

    In the ordinary range this is, bit for bit, torch.nn.utils.get_total_norm. Squares of large finite float32 entries
    overflow (3e19 and 4e19 have norm 5e19, the plain one says inf) and those of tiny ones vanish: then the entries are
    first divided by the largest of them, in float64.
    """
    if not gradients:
        return 0.0
    with torch.no_grad():
        norm = _joined(torch._foreach_norm(gradients))
        return norm if SAFE_LOW < norm < SAFE_HIGH else _careful_norm(gradients, norm)


def _joined(norms: Sequence[Tensor]) -> float:
    first = norms[0].device
    if any(norm.device != first for norm in norms):
        norms = [norm.to(first) for norm in norms]
    return float(torch.linalg.vector_norm(torch.stack(tuple(norms))))


def _careful_norm(gradients: Sequence[Tensor], plain: float) -> float:
    largest = _largest(gradients)
    if largest == 0.0 or not math.isfinite(largest):
        return plain if largest == 0.0 or not math.isfinite(plain) else largest
    scaled = [gradient.abs().double() / largest for gradient in gradients]
    return largest * _joined(torch._foreach_norm(scaled))


def _largest(tensors: Sequence[Tensor]) -> float:
    filled = [tensor for tensor in tensors if tensor.numel()]
    if not filled:
        return 0.0
    norms = torch._foreach_norm(filled, math.inf)
    return float(torch.stack([norm.double().to(norms[0].device) for norm in norms]).max())


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """True when no entry is NaN or infinite. Integer tensors always are."""
    with torch.no_grad():
        return math.isfinite(_largest([t for t in tensors if t.is_floating_point() or t.is_complex()]))


def first_nonfinite(named: Iterable[tuple[str, Tensor | None]]) -> str | None:
    """Name of the first tensor, in the order given, that holds a NaN or an infinity; None when there is none."""
    for name, tensor in named:
        if tensor is not None and not all_finite([tensor]):
            return name
    return None


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
    dtype = gradients[0].dtype
    with torch.no_grad():
        if norm < SAFE_HIGH and dtype is not torch.float16:
            factor = (max_norm / (torch.tensor(norm, dtype=dtype) + 1e-6)).item()
            torch._foreach_mul_(gradients, factor)
        else:
            # The factor itself may be too small for the dtype; its square root is not.
            root = math.sqrt(max_norm / norm)
            torch._foreach_mul_(gradients, root)
            torch._foreach_mul_(gradients, root)
    return True


def snapshot(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Copies of the tensors, without a graph: what update_norm and layer_norms compare with."""
    return [parameter.detach().clone() for parameter in parameters]


def update_norm(parameters: Sequence[Tensor], before: Sequence[Tensor]) -> float:
    """The 2-norm of how far the parameters moved since snapshot(parameters)."""
    if len(parameters) != len(before):
        raise StateError(f"{len(parameters)} parameters, {len(before)} in the snapshot", "equally many", "take it anew")
    with torch.no_grad():
        return gradient_norm(torch._foreach_sub(parameters, before))


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
    named = list(model.named_parameters())
    if before is not None and len(before) != len(named):
        raise StateError(f"{len(named)} parameters, {len(before)} in the snapshot", "equally many", "take it anew")
    layers: dict[str, list[int]] = {}
    for position, (name, _) in enumerate(named):
        layers.setdefault(name.rpartition(".")[0], []).append(position)
    weights = [parameter.detach() for _, parameter in named]
    found: dict[str, LayerNorm] = {}
    for layer, positions in layers.items():
        gradients = [grad for i in positions if (grad := named[i][1].grad) is not None]
        weight = gradient_norm([weights[i] for i in positions])
        update = None
        if before is not None:
            update = update_norm([weights[i] for i in positions], [before[i] for i in positions])
        found[layer] = LayerNorm(
            gradient=gradient_norm(gradients) if gradients else None,
            weight=weight,
            update=update,
            ratio=update / weight if update is not None and weight > 0.0 else None,
        )
    return found
