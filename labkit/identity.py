"""What must be the same to continue a run: config, architecture, data; for exactness also build and machine. Lesson 05.

The first three fail closed: a difference is refused before any live object changes. The last needs a named override,
and the records then say that the run is no longer exact.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from labkit.config import RunConfig
from labkit.errors import IdentityError
from labkit.recipe import Recipe, Splits
from labkit.state import architecture

OVERRIDES = ("data", "torch", "device", "threads", "cpu_capability", "eval_every", "patience", "min_improvement")
"""Differences that `--override NAME` lets pass. A changed architecture, seed, order or optimizer is another run."""


def identity(config: RunConfig, model: nn.Module, recipe: Recipe, splits: Splits) -> dict[str, Any]:
    """Plain values of "config", "architecture", "data", "machine"; a digest is None where the recipe gives none."""
    prints = recipe.fingerprint(config)
    present = {"train": splits.train, "validation": splits.validation}
    lengths = {name: len(split) for name, split in present.items() if split is not None}
    return {
        "config": config.identity(),
        "architecture": architecture(model),
        "data": {name: {"length": n, "digest": (prints or {}).get(name)} for name, n in lengths.items()},
        "machine": {
            "torch": str(torch.__version__),
            "device": _device_name(config.device),
            "threads": config.threads,
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        },
    }


def _device_name(name: str) -> str:
    device = torch.device(name)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@dataclass(frozen=True)
class Mismatch:
    """One value that differs: field, what the checkpoint holds, what is there now, the override that lets it pass."""

    field: str
    saved: Any
    present: Any
    override: str | None


def mismatches(saved: Mapping[str, Any], present: Mapping[str, Any]) -> list[Mismatch]:
    """Every difference between two identities, config first."""
    found = []
    for section in ("config", "architecture", "data", "machine"):
        before, now = _flat(saved.get(section, {})), _flat(present.get(section, {}))
        for name in list(before) + [name for name in now if name not in before]:
            old, new = before.get(name, "absent"), now.get(name, "absent")
            if old != new:
                override = "data" if section == "data" else name if name in OVERRIDES else None
                found.append(Mismatch(f"{section}.{name}", old, new, override))
    return found


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return flat


def check(saved: Mapping[str, Any], present: Mapping[str, Any], overrides: Collection[str] = ()) -> list[Mismatch]:
    """The differences that an override let pass. Raises IdentityError naming field and both values for the rest."""
    unknown = set(overrides) - set(OVERRIDES)
    if unknown:
        raise IdentityError(f"there is no override called {min(unknown)!r}", "one of " + ", ".join(OVERRIDES), "")
    found = mismatches(saved, present)
    refused = [item for item in found if item.override not in overrides]
    if refused:
        shown = "; ".join(f"{m.field}: checkpoint {m.saved!r}, now {m.present!r}" for m in refused[:4])
        more = f" (and {len(refused) - 4} more)" if len(refused) > 4 else ""
        names = sorted({m.override for m in refused if m.override})
        remedy = "put the old value back, or start a new run in another folder"
        if names and all(m.override for m in refused):
            remedy += "; or go on, marked inexact, with " + " ".join(f"--override {name}" for name in names)
        raise IdentityError(f"this is not the run that was saved: {shown}{more}", "the same values", remedy)
    return found


def is_unverified(identity_: Mapping[str, Any]) -> bool:
    """True when some split has no digest, so that changed data would not be noticed."""
    return any(split["digest"] is None for split in identity_["data"].values())
