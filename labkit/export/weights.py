"""A model's tensors by name: each shared one once, wrappers' parts left out; a digest of all. Lesson 09."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor, nn

from labkit.errors import ExportError
from labkit.state import bare, leaf_bytes

WRAPPERS: Final = ("_orig_mod", "module")  # the names that torch.compile and data-parallel wrappers put in front
_PARAMETRIZED: Final = re.compile(r"(?:(.*)\.)?parametrizations\.([^.]+)\.original$")
_ADDED: Final = re.compile(r"(?:.*\.)?parametrizations\.[^.]+\.\d+\.")


@dataclass
class Slot:
    """One tensor of a model, all its names, and the dictionaries that hold it under each name."""

    names: list[str]
    holders: list[tuple[dict[str, Any], str]]
    is_buffer: bool
    saved: bool  # False for a buffer that state_dict() leaves out

    @property
    def tensor(self) -> Tensor:
        holder, key = self.holders[0]
        tensor: Tensor = holder[key]
        return tensor


def slots(model: nn.Module) -> list[Slot]:
    """Every parameter and buffer of the bare model, each shared one once with all its names; in a fixed order."""
    found: dict[int, Slot] = {}
    for prefix, module in bare(model).named_modules(remove_duplicate=False):
        inside = without_wrappers(prefix.split("."), ("_orig_mod",)) if prefix else []
        for holder, is_buffer in ((module._parameters, False), (module._buffers, True)):
            for key, tensor in holder.items():
                if tensor is None:
                    continue
                saved = not is_buffer or key not in module._non_persistent_buffers_set
                slot = found.setdefault(id(tensor), Slot([], [], is_buffer, saved))
                slot.saved = slot.saved or saved
                name = ".".join([*inside, key])
                if name not in slot.names:
                    slot.names.append(name)
                slot.holders.append((holder, key))
    return list(found.values())


def without_wrappers(parts: Iterable[str], wrappers: Iterable[str] = WRAPPERS) -> list[str]:
    """The parts of a dotted name that no wrapper put there."""
    return [part for part in parts if part not in wrappers]


@dataclass
class Contents:
    """A model's tensors, copied to the CPU and no larger than themselves; ties: further name -> stored name."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    ties: dict[str, str] = field(default_factory=dict)
    hidden: list[str] = field(default_factory=list)  # buffers that state_dict() leaves out


def contents(model: nn.Module) -> Contents:
    """What to store of a model. Raises ExportError for extra state, which has no place in a file of tensors."""
    found = Contents()
    for slot in slots(model):
        first = slot.names[0]
        found.tensors[first] = slot.tensor.detach().to("cpu").contiguous().clone()
        found.ties.update({other: first for other in slot.names[1:]})
        if not slot.saved:
            found.hidden.append(first)
    extra = [name for name in bare(model).state_dict() if name.rpartition(".")[2] == "_extra_state"]
    if extra:
        raise ExportError(
            f"the model keeps more than tensors: {', '.join(extra[:3])}",
            "parameters and buffers only",
            "keep such values in a buffer, or build them from the config in model()",
        )
    return found


def digest(model: nn.Module) -> str:
    """SHA-256 (hex) over names, shapes, dtypes and bits of all tensors; what attach() added is looked through."""
    return digest_of(base_tensors(model))


def base_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All tensors by all their names, as they would be without parametrizations."""
    found: dict[str, Tensor] = {}
    for slot in slots(model):
        for name in slot.names:
            original = _PARAMETRIZED.match(name)
            if original:
                found[".".join(filter(None, original.groups()))] = slot.tensor
            elif not _ADDED.match(name):
                found[name] = slot.tensor
    return found


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 (hex) over tensors by name, in the order of the names."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode() + b"\0")
        total.update(leaf_bytes(tensors[name]))
    return total.hexdigest()
