"""What a recipe's objects remember outside the saved state: attributes, by path, with digests and values. Lesson 15.

Walked: the recipe, its data sets, every module of the model, transform and collate with their closures, and the
globals of the file that defines the recipe. Left out: what RunState saves already.
"""

from __future__ import annotations

import collections
import hashlib
import random
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from labkit import randomness
from labkit.build import Parts
from labkit.recipes import from_file
from labkit.state import bare, leaf_bytes

DEPTH = 6
Step = tuple[str, Any]  # ("attr", name), ("item", key), ("cell", number), ("global", name)

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


@dataclass(frozen=True)
class Leaf:
    """One remembered value: where it is, what kind, and a copy of it that restricted loading accepts (or None)."""

    path: str
    root: str
    steps: tuple[Step, ...]
    kind: str  # "value", "tensor", "array", "generator"
    digest: str
    value: Any


def roots(parts: Parts) -> dict[str, Any]:
    """The objects from which the walk starts, by the name that a message uses."""
    found: dict[str, Any] = {"recipe": parts.recipe, "train data": parts.splits.train}
    if parts.splits.validation is not None:
        found["validation data"] = parts.splits.validation
    if parts.splits.transform is not None:
        found["transform"] = parts.splits.transform
    for name, module in bare(parts.state.model).named_modules():
        found[f"model.{name}" if name else "model"] = module
    return found


def leaves(parts: Parts) -> list[Leaf]:
    """Every remembered value that can be told from another, in a fixed order."""
    saved = {id(generator) for generator in parts.state.generators.values()}
    saved |= {id(thing) for thing in parts.state.stateful.values()}
    saved |= {id(p) for p in parts.state.model.parameters()} | {id(b) for b in parts.state.model.buffers()}
    seen: set[int] = set()
    found: list[Leaf] = []
    for root, thing in roots(parts).items():
        for steps, value in _walk(thing, (), DEPTH, seen, saved):
            leaf = _leaf(root, steps, value)
            if leaf is not None:
                found.append(leaf)
    return found


def _walk(
    thing: Any, steps: tuple[Step, ...], depth: int, seen: set[int], saved: set[int]
) -> Iterator[tuple[tuple[Step, ...], Any]]:  # fmt: skip
    if id(thing) in saved:
        return
    if _is_leaf(thing):
        yield steps, thing
        return
    if depth == 0 or id(thing) in seen or isinstance(thing, type | types.ModuleType):
        return
    seen.add(id(thing))
    for step, value in _children(thing):
        yield from _walk(value, (*steps, step), depth - 1, seen, saved)


def _is_leaf(thing: Any) -> bool:
    if isinstance(thing, (*_PLAIN, torch.Tensor, np.ndarray, np.generic, *_GENERATORS)):
        return True
    if isinstance(thing, list | tuple | set | frozenset | collections.deque):
        return all(isinstance(item, _PLAIN) for item in thing)
    return isinstance(thing, dict) and all(isinstance(v, _PLAIN) for v in thing.values())


def _children(thing: Any) -> Iterator[tuple[Step, Any]]:
    if isinstance(thing, types.MethodType):
        yield ("attr", "__self__"), thing.__self__
        yield ("attr", "__func__"), thing.__func__
    elif isinstance(thing, types.FunctionType):
        yield from _of_function(thing)
    elif isinstance(thing, dict):
        yield from ((("item", key), value) for key, value in thing.items() if isinstance(key, str | int))
    elif isinstance(thing, list | tuple | collections.deque):
        yield from ((("item", place), value) for place, value in enumerate(thing))
    else:
        skipped = _MODULE_INSIDE if isinstance(thing, nn.Module) else frozenset()
        yield from ((("attr", name), value) for name, value in vars_of(thing).items() if name not in skipped)
        for method in type(thing).__mro__[:-1]:
            for function in vars(method).values():
                if isinstance(function, types.FunctionType) and not _foreign(function):
                    yield from _of_function(function)


_MODULE_INSIDE = frozenset(vars(nn.Module()))


def vars_of(thing: Any) -> dict[str, Any]:
    """Instance attributes, those in slots too."""
    found = dict(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if isinstance(name, str) and hasattr(thing, name):
                found[name] = getattr(thing, name)
    return found


def _foreign(function: types.FunctionType) -> bool:
    """Whether a function belongs to torch, numpy or the standard library: their globals are not the user's."""
    top = (function.__module__ or "").split(".")[0]
    return top in {"torch", "numpy", "abc", "typing", "collections", "functools", "dataclasses", "builtins"}


def _of_function(function: types.FunctionType) -> Iterator[tuple[Step, Any]]:
    for number, cell in enumerate(function.__closure__ or ()):
        try:
            yield ("cell", number), cell.cell_contents
        except ValueError:  # a cell that is not filled yet holds nothing to remember
            continue
    for place, value in enumerate(function.__defaults__ or ()):
        if not isinstance(value, _PLAIN):
            yield ("attr", f"__defaults__[{place}]"), value
    if not _foreign(function):
        for name in function.__code__.co_names:
            value = function.__globals__.get(name)
            if name in function.__globals__ and not callable(value) and not isinstance(value, types.ModuleType):
                yield ("global", (function.__module__, name)), value


def _leaf(root: str, steps: tuple[Step, ...], value: Any) -> Leaf | None:
    kind, plain = "value", value
    if isinstance(value, torch.Tensor):
        kind, plain = "tensor", value.detach().clone()
    elif isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return None
        kind, plain = "array", torch.from_numpy(value.copy()) if value.dtype.kind in "biuf" else value.tolist()
    elif isinstance(value, np.generic):
        plain = value.item()
    elif isinstance(value, _GENERATORS):
        kind, plain = "generator", _state_of(value)
    elif isinstance(value, collections.deque | tuple):
        plain = list(value)
    elif isinstance(value, set | frozenset):
        plain = sorted(value, key=repr)
    elif isinstance(value, dict):
        plain = dict(value)
    return Leaf(root + _shown(steps), root, steps, kind, _digest(plain), plain)


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return repr(generator.getstate())
    if isinstance(generator, np.random.RandomState):
        return repr(generator.get_state(legacy=False))
    return randomness.capture({"it": generator})["generators"]["it"]


def _digest(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return hashlib.blake2b(leaf_bytes(value), digest_size=8).hexdigest()
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


def _module_shown(name: str) -> str:
    return from_file.file_of(name).name if name.startswith(from_file.__name__ + ".") else name


def _shown(steps: tuple[Step, ...]) -> str:
    text = ""
    for kind, name in steps:
        if kind == "attr":
            text += f".{name}"
        elif kind == "item":
            text += f"[{name!r}]"
        elif kind == "cell":
            text += f" (closure variable {name})"
        else:
            text = f" (global variable {name[1]} of {_module_shown(name[0])})"
    return text
