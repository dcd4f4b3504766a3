"""The adapter artefact: a low-rank change to named layers, bound to the digest of its exact base. Lesson 09.

The effective weight is weight + scale * left @ right, computed by torch's own parametrization in each forward, so the
merged model does the very same arithmetic. left starts at zero: an untrained adapter changes nothing.
Source of the form: Hu et al. 2021, "LoRA", https://arxiv.org/abs/2106.09685.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from labkit.errors import ExportError
from labkit.export.artefact import Artefact, publish, read
from labkit.export.inference import Inference, load_inference
from labkit.export.source import open_run
from labkit.export.trial import equal_on, real_batches
from labkit.export.weights import base_tensors, digest, slots
from labkit.files import DISK, Files
from labkit.randomness import torch_generator
from labkit.recipe import Recipe
from labkit.state import bare, leaf_bytes


class LowRank(nn.Module):
    """weight -> weight + scale * left @ right, seen as (first dimension, all others); rank columns in left."""

    left: nn.Parameter
    right: nn.Parameter

    def __init__(self, weight: Tensor, rank: int, scale: float, generator: torch.Generator | None = None) -> None:
        super().__init__()
        out, into = weight.shape[0], weight[0].numel()
        self.scale = float(scale)
        self.left = nn.Parameter(torch.zeros(out, rank, dtype=weight.dtype, device=weight.device))
        drawn = torch.randn(rank, into, generator=generator) / into**0.5
        self.right = nn.Parameter(drawn.to(weight.device, weight.dtype))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.scale * (self.left @ self.right).reshape(weight.shape)


def attach(model: nn.Module, layers: Iterable[str], rank: int, scale: float = 1.0, seed: int = 0) -> list[str]:
    """Add a trainable low-rank change to the weight of each named layer, and freeze everything else.

    layers: names of modules, * for any run of characters. Returns the names found. Raises ExportError for a name
    without a layer, a layer without a weight of two or more dimensions, a tied weight, and a rank that saves nothing.
    """
    named = dict(bare(model).named_modules())
    chosen: dict[str, nn.Module] = {}
    for pattern in layers:
        hits = {n: m for n, m in named.items() if fnmatchcase(n, pattern) and (n == pattern or _has_matrix(m))}
        if not hits:
            fit = [name for name, module in named.items() if _has_matrix(module)]
            raise ExportError(f"no layer is called {pattern!r}", "one of " + ", ".join(fit), "correct the name")
        chosen.update(hits)
    tied = {name for slot in slots(model) if len(slot.names) > 1 for name in slot.names}
    for name, module in chosen.items():
        _refuse_unfit(name, module, rank, tied)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for name, module in chosen.items():
        weight: Any = module.weight
        low_rank = LowRank(weight, rank, scale, torch_generator("adapter", seed, name))
        parametrize.register_parametrization(module, "weight", low_rank)
    return list(chosen)


def _has_matrix(module: nn.Module) -> bool:
    weight = module._parameters.get("weight")
    return weight is not None and weight.dim() >= 2


def _refuse_unfit(name: str, module: nn.Module, rank: int, tied: set[str]) -> None:
    weight = module._parameters.get("weight")
    if parametrize.is_parametrized(module):
        raise ExportError(f"{name} carries a parametrization already", "a plain layer", "attach one adapter only")
    if weight is None or weight.dim() < 2:
        raise ExportError(f"{name} has no weight of two or more dimensions", "a linear, convolution or embedding", "")
    if f"{name}.weight" in tied:
        raise ExportError(f"the weight of {name} is tied to another", "a weight of its own", "choose other layers")
    most = min(weight.shape[0], weight[0].numel())
    if type(rank) is not int or not 1 <= rank < most:
        raise ExportError(f"rank {rank} for {name} of shape {tuple(weight.shape)}", f"1 to {most - 1}", "")


def attached(model: nn.Module) -> dict[str, LowRank]:
    """The low-rank changes in a model, by layer."""
    found = {}
    for name, module in bare(model).named_modules():
        if parametrize.is_parametrized(module, "weight"):
            changes: Any = module.parametrizations
            if isinstance(changes.weight[0], LowRank):
                found[name] = changes.weight[0]
    return found


def merge(model: nn.Module) -> list[str]:
    """Make every attached change permanent, in place: plain layers again, with the weights that they had in effect."""
    layers = list(attached(model))
    named = dict(bare(model).named_modules())
    for name in layers:
        parametrize.remove_parametrizations(named[name], "weight", leave_parametrized=True)
    return layers


# --- making one -----------------------------------------------------------------------------------------------------


def export_adapter(
    run: Path | str,
    target: Path | str,
    *,
    base: Path | str,
    checkpoint: str | int = "best",
    recipe: Recipe | None = None,
    files: Files = DISK,
) -> Artefact:
    """Make an adapter artefact of a run whose recipe attached one to a base.

    base: the inference or merged artefact that it was attached to. Raises ExportError when the run's model holds no
    adapter, or when anything else in it differs from the base: an adapter carries only its change.
    """
    source = open_run(run, checkpoint, recipe)
    model = source.parts.state.model
    changes = attached(model)
    if not changes:
        raise ExportError(
            f"the model of {source.place.name} carries no adapter",
            "one that attach() added in the recipe's model()",
            "",
        )
    ground = load_inference(base)
    _refuse_moved(model, ground.model)
    batches = real_batches(source.parts.splits, source.parts.recipe, "cpu")
    layers = {name: {"rank": change.left.shape[1], "scale": change.scale} for name, change in changes.items()}
    tensors = {
        f"{name}.{side}": getattr(change, side).detach().cpu().contiguous().clone()
        for name, change in changes.items()
        for side in ("left", "right")
    }
    about = {
        **source.about(),
        "layers": layers,
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "base": {"digest": digest(ground.model), "name": Path(base).name, "kind": ground.artefact.kind},
    }

    def check(folder: Path) -> None:
        again = load_adapter(folder, base)
        equal_on(batches, source.parts.recipe, model, again.model, "base with the reloaded adapter")

    return publish(target, "adapter", about, tensors, source.code(), check, files)


def _refuse_moved(model: nn.Module, base: nn.Module) -> None:
    mine, theirs = base_tensors(model), base_tensors(base)
    if mine.keys() != theirs.keys():
        odd = sorted(mine.keys() ^ theirs.keys())
        raise ExportError(
            f"the run's model and the base differ in {', '.join(odd[:3])}", "the base it started from", ""
        )
    moved = [name for name in mine if leaf_bytes(mine[name]) != leaf_bytes(theirs[name])]
    if moved:
        buffers = {name for slot in slots(base) if slot.is_buffer for name in slot.names}
        kept = "keep BatchNorm in eval mode while the adapter trains" if set(moved) <= buffers else "freeze it"
        raise ExportError(
            f"beside the adapter, {', '.join(moved[:3])} differ from the base (digest {digest(model)})",
            f"the base unchanged (digest {digest(base)})",
            f"name the base that it was attached to, or {kept} and train again: an adapter carries only its own change",
        )


# --- using one ------------------------------------------------------------------------------------------------------


def load_adapter(
    folder: Path | str, base: Path | str, *, recipe: Recipe | None = None, run_code: bool = False, device: str = "cpu"
) -> Inference:
    """The base with the adapter on it, in eval mode; use it as an Inference.

    Raises ExportError, showing both digests, when the base is not the exact one that the adapter was made on.
    """
    artefact = read(folder, ("adapter",))
    ground = load_inference(base, recipe=recipe, run_code=run_code, device=device)
    present = digest(ground.model)
    try:
        wanted, layers = artefact.about["base"], artefact.about["layers"]
        if present != wanted["digest"]:
            raise ExportError(
                f"the base {Path(base).name} has digest {present}",
                f"digest {wanted['digest']} ({wanted['name']}), the base that this adapter was made on",
                "use that base: on another one the same change means something else",
            )
        _put(ground.model, layers, artefact.tensors())
    except (KeyError, TypeError, AttributeError) as error:
        raise ExportError(
            f"{folder} is described incompletely ({error})", "what was exported", "export again"
        ) from error
    return Inference(ground.model.eval(), ground.recipe, ground.config, ground.artefact, ground.remarks)


def _put(model: nn.Module, layers: Mapping[str, Mapping[str, Any]], tensors: Mapping[str, Tensor]) -> None:
    named = dict(bare(model).named_modules())
    for name, facts in layers.items():
        module = named.get(name)
        if module is None or not _has_matrix(module):
            raise ExportError(f"the base has no layer {name}", "the layers that the adapter names", "")
        weight: Any = module.weight
        change = LowRank(weight, int(facts["rank"]), float(facts["scale"]))
        for side, live in (("left", change.left), ("right", change.right)):
            stored = tensors[f"{name}.{side}"]
            if stored.shape != live.shape or stored.dtype != live.dtype:
                raise ExportError(f"{name}.{side} is {tuple(stored.shape)} {stored.dtype}", f"{tuple(live.shape)}", "")
            with torch.no_grad():
                live.copy_(stored)
        parametrize.register_parametrization(module, "weight", change)
