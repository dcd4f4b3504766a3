"""A model's part of the state: weights, every buffer, modes, trainable flags; and buffers to put back. Lesson 04."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labkit.errors import StateError
from labkit.state.saved import Saved

OTHER = "resume with the recipe and settings that the run was started with"


def bare(model: nn.Module) -> nn.Module:
    """The module inside torch.compile and data-parallel wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def capture_model(model: nn.Module) -> Saved:
    """Weights, all buffers (also those that state_dict() leaves out), which parameters are trainable, module modes."""
    inner = bare(model)
    state = {name: value for name, value in inner.state_dict().items()}
    hidden = {name: value for name, value in inner.named_buffers() if name not in state}
    return {
        "state": state,
        "hidden_buffers": hidden,
        "trainable": {name: p.requires_grad for name, p in inner.named_parameters(remove_duplicate=False)},
        "training": {name: module.training for name, module in inner.named_modules()},
    }


def architecture(model: nn.Module) -> dict[str, str]:
    """Name to "shape dtype" of every parameter and buffer: what must be equal to continue."""
    inner = bare(model)
    named = list(inner.named_parameters(remove_duplicate=False)) + list(inner.named_buffers(remove_duplicate=False))
    return {name: f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for name, t in named}


def check_model(model: nn.Module, saved: Saved) -> None:
    """Raise StateError naming the first entry that is missing, unknown or of another shape or dtype."""
    live = capture_model(model)
    for group in ("state", "hidden_buffers", "trainable", "training"):
        missing, extra = live[group].keys() - saved[group].keys(), saved[group].keys() - live[group].keys()
        if missing or extra:
            raise StateError(
                f"the checkpoint lacks {sorted(missing)[:3]} and has {sorted(extra)[:3]} besides",
                "the same names of parameters, buffers and modules",
                OTHER,
            )
        for name, value in live[group].items():
            other = saved[group][name]
            if not isinstance(value, Tensor):
                continue
            if not isinstance(other, Tensor) or value.shape != other.shape or value.dtype != other.dtype:
                seen = f"{tuple(other.shape)} {other.dtype}" if isinstance(other, Tensor) else type(other).__name__
                raise StateError(f"{name} is {seen} in the checkpoint", f"{tuple(value.shape)} {value.dtype}", OTHER)


def load_model(model: nn.Module, saved: Saved) -> None:
    """Copy a checked state into the model; modes and trainable flags included. Tied weights stay tied."""
    inner = bare(model)
    inner.load_state_dict(saved["state"], strict=True)
    with torch.no_grad():
        for name, value in inner.named_buffers():
            if name in saved["hidden_buffers"]:
                value.copy_(saved["hidden_buffers"][name])
    for name, parameter in inner.named_parameters():
        parameter.requires_grad_(saved["trainable"][name])
    for name, module in inner.named_modules():
        module.training = saved["training"][name]


KeptBuffer = tuple[dict[str, Tensor | None], str, Tensor, Tensor]
"""Where a module keeps a buffer, its name there, the tensor itself and a copy of its bits."""


def kept_buffers(model: nn.Module) -> list[KeptBuffer]:
    """Every buffer with a copy, for put_back(): forward may write into a buffer, or put another tensor in its place."""
    return [
        (module._buffers, name, value, value.clone())
        for module in model.modules()
        for name, value in module._buffers.items()
        if value is not None
    ]


def put_back(buffers: list[KeptBuffer]) -> None:
    """The same tensors in the same places with the same bits; what changed no bit is not written to."""
    with torch.no_grad():
        for holder, name, value, kept in buffers:
            holder[name] = value
            if not _same_bits(value, kept):
                value.copy_(kept)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
