"""Carrying remembered values from one process into another: written at a boundary, put into new objects. Lesson 15."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from labkit.build import Parts
from labkit.proof.reachable import Leaf, leaves, roots
from labkit.randomness import capture, restore


def write_reachable(parts: Parts, attempt: int, target: Path) -> None:
    """Write every remembered value of this process at this boundary."""
    torch.save([_stored(leaf) for leaf in leaves(parts)], target.with_name(f"{target.stem}-{attempt}.pt"))


def _stored(leaf: Leaf) -> dict[str, Any]:
    return {
        "path": leaf.path, "root": leaf.root, "steps": [list(step) for step in leaf.steps], "kind": leaf.kind,
        "digest": leaf.digest, "value": leaf.value,
    }  # fmt: skip


def read_reachable(target: Path, attempt: int) -> dict[str, dict[str, Any]]:
    """What write_reachable() wrote, by path."""
    stored = torch.load(target.with_name(f"{target.stem}-{attempt}.pt"), weights_only=True)
    return {leaf["path"]: leaf for leaf in stored}


def transplant(parts: Parts, source: Path) -> None:
    """Put stored values into the objects of this process. Raises ProofError for a path that is not here."""
    found = roots(parts)
    for leaf in torch.load(source, weights_only=True):
        holder: Any = found[leaf["root"]]
        *way, last = [tuple(step) for step in leaf["steps"]]
        for step in way:
            holder = _go(holder, step)
        _put(holder, last, leaf["kind"], leaf["value"])


def _go(holder: Any, step: tuple[str, Any]) -> Any:
    kind, name = step
    if kind == "item":
        return holder[name]
    if kind == "cell":
        return holder.__closure__[name].cell_contents
    if kind == "global":
        return vars(sys.modules[name[0]])[name[1]]
    if name.startswith("__defaults__"):
        return holder.__defaults__[int(name[13:-1])]
    return getattr(holder, name)


def _put(holder: Any, step: tuple[str, Any], kind: str, value: Any) -> None:
    present = _go(holder, step)
    if kind == "generator":
        if isinstance(present, torch.Generator):
            present.set_state(value)
        else:
            restore({**capture(), "generators": {"it": value}}, {"it": present})
    elif kind in {"tensor", "array"}:
        present[...] = value if kind == "tensor" else value.numpy()
    elif isinstance(present, list):
        present[:] = value
    elif isinstance(present, dict | set):
        present.clear()
        present.update(value)
    elif hasattr(present, "extend") and hasattr(present, "clear"):
        present.clear()
        present.extend(value)
    else:
        _set(holder, step, value)


def _set(holder: Any, step: tuple[str, Any], value: Any) -> None:
    kind, name = step
    if kind == "attr":
        object.__setattr__(holder, name, value)
    elif kind == "item":
        holder[name] = value
    elif kind == "cell":
        holder.__closure__[name].cell_contents = value
    else:
        vars(sys.modules[name[0]])[name[1]] = value
