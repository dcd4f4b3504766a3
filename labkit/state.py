"""Everything that must survive a stop, under one name. If the loop can change it, it is here. Lessons 01 and 04.

capture() gives plain values and tensors that restricted loading accepts; restore() checks all of it against the live
objects before it changes any of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labkit import randomness
from labkit.ema import Ema
from labkit.errors import EmaError, StateError
from labkit.order import Cursor
from labkit.precision import Precision
from labkit.schedule import Schedule

Saved = dict[str, Any]

PARTS = ("model", "optimizer", "schedule", "scaler", "ema", "counters", "cursor", "best", "rng", "stateful")
"""The parts of a saved state, in the order in which restore() puts them back; random streams last."""


@dataclass
class Counters:
    """How far the run has come. Every counter has its own unit; none is called a step."""

    attempted: int = 0  # attempts at an update, whatever became of them
    committed: int = 0  # updates that moved the parameters
    skipped: int = 0  # attempts that the guard refused
    scaler_skipped: int = 0  # attempts that the fp16 scaler skipped
    empty: int = 0  # attempts without any valid target
    skips_in_a_row: int = 0
    scaler_skips_in_a_row: int = 0
    examples: int = 0  # examples of committed updates
    tokens: int = 0  # valid targets of committed updates
    evaluations: int = 0
    evaluated_update: int = 0  # the committed update of the last finished evaluation


@dataclass
class Best:
    """The best evaluation so far. None is the only value that means "not set"."""

    value: float | None = None
    update: int | None = None
    without_improvement: int = 0  # evaluations in a row


@dataclass
class RunState:
    """The live objects and counters of one run: the only thing that is saved."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    precision: Precision
    ema: Ema | None = None
    counters: Counters = field(default_factory=Counters)
    cursor: Cursor = field(default_factory=lambda: Cursor(0, 0))
    best: Best = field(default_factory=Best)
    generators: Mapping[str, torch.Generator | np.random.Generator] = field(default_factory=dict)
    stateful: Mapping[str, Any] = field(default_factory=dict)
    devices: tuple[torch.device, ...] = ()

    def capture(self) -> Saved:
        """All of it as tensors and plain values. Tensors are references to live ones: save or clone before moving on.

        Raises EmaError while the model carries the average: its own weights are elsewhere then.
        """
        if self.ema is not None and self.ema.lent:
            raise EmaError("the model carries the average", "its own weights", "save after the evaluation")
        return {
            "model": capture_model(self.model),
            "optimizer": capture_optimizer(self.model, self.optimizer),
            "schedule": self.schedule.state_dict(),
            "scaler": self.precision.state_dict(),
            "ema": self.ema.state_dict() if self.ema else None,
            "counters": asdict(self.counters),
            "cursor": {"epoch": self.cursor.epoch, "examples": self.cursor.examples},
            "best": asdict(self.best),
            "rng": randomness.capture(self.generators, self.devices),
            "stateful": {name: thing.state_dict() for name, thing in self.stateful.items()},
        }

    def restore(self, saved: Saved) -> None:
        """Put a saved state into the live objects: model, optimizer, schedule, then the rest, random streams last.

        Raises StateError or a relative, naming the part, before any live object has changed.
        """
        missing = [part for part in PARTS if part not in saved]
        if missing:
            raise StateError(f"the saved state lacks {', '.join(missing)}", "all of " + ", ".join(PARTS), _OTHER)
        check_model(self.model, saved["model"])
        ready = _prepared_optimizer(self.model, self.optimizer, saved["optimizer"])
        if (saved["ema"] is None) != (self.ema is None):
            raise StateError("the weight average is on one side only", "the same ema_decay as at the start", _OTHER)
        if set(saved["stateful"]) != set(self.stateful):
            raise StateError(
                f"saved stateful objects {sorted(saved['stateful'])}",
                f"{sorted(self.stateful)}",
                "see Recipe.stateful()",
            )
        self.schedule.check_state(saved["schedule"])
        self.precision.check_state(saved["scaler"])
        if self.ema is not None:
            self.ema.check_state(saved["ema"])
        counters, best = _plain(Counters, saved["counters"]), _plain(Best, saved["best"])
        cursor = _plain(Cursor, saved["cursor"])
        randomness.check(saved["rng"], self.generators, self.devices)

        load_model(self.model, saved["model"])
        self.optimizer.load_state_dict(ready)
        self.schedule.load_state_dict(saved["schedule"])
        self.precision.load_state_dict(saved["scaler"])
        if self.ema:
            self.ema.load_state_dict(saved["ema"])
        self.counters, self.best, self.cursor = counters, best, cursor
        for name, thing in self.stateful.items():
            thing.load_state_dict(saved["stateful"][name])
        randomness.restore(saved["rng"], self.generators, self.devices)


_OTHER = "resume with the recipe and settings that the run was started with"


def _plain(kind: type, saved: Mapping[str, Any]) -> Any:
    names = {item.name for item in fields(kind)}
    if set(saved) != names:
        raise StateError(f"the saved {kind.__name__.lower()} hold {sorted(saved)}", f"{sorted(names)}", _OTHER)
    return kind(**saved)


# --- model -----------------------------------------------------------------------------------------------------------


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
                _OTHER,
            )
        for name, value in live[group].items():
            other = saved[group][name]
            if not isinstance(value, Tensor):
                continue
            if not isinstance(other, Tensor) or value.shape != other.shape or value.dtype != other.dtype:
                seen = f"{tuple(other.shape)} {other.dtype}" if isinstance(other, Tensor) else type(other).__name__
                raise StateError(f"{name} is {seen} in the checkpoint", f"{tuple(value.shape)} {value.dtype}", _OTHER)


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


# --- optimizer: torch matches by position, labkit by name ------------------------------------------------------------


def _names_by_group(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[str]]:
    names = {id(parameter): name for name, parameter in bare(model).named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise StateError(
                    f"the optimizer holds a tensor of shape {tuple(parameter.shape)} that is no parameter of the model",
                    "only parameters of the model that is trained",
                    "build the optimizer from model.parameters()",
                )
        groups.append([names[id(parameter)] for parameter in group["params"]])
    return groups


def capture_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> Saved:
    """{"type", "groups": [{"names", hyperparameters}], "state": {parameter name: its state}, "own": the rest}."""
    groups = _names_by_group(model, optimizer)
    parameters = dict(bare(model).named_parameters())
    hyper = [{k: v for k, v in g.items() if k not in {"params", "param_names"}} for g in optimizer.param_groups]
    present = {name: optimizer.state[parameters[name]] for names in groups for name in names}
    return {
        "type": type(optimizer).__name__,
        "groups": [{"names": names, **values} for names, values in zip(groups, hyper, strict=True)],
        "state": {name: dict(state) for name, state in present.items() if state},
        "own": {key: value for key, value in optimizer.state.items() if isinstance(key, str)},
    }


def _prepared_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, saved: Saved) -> dict[str, Any]:
    """torch's own form of the saved state in the order of the live parameters. Raises StateError if it does not fit."""
    if saved["type"] != type(optimizer).__name__:
        raise StateError(f"the checkpoint holds the state of {saved['type']}", type(optimizer).__name__, _OTHER)
    live = _names_by_group(model, optimizer)
    if [set(names) for names in live] != [set(group["names"]) for group in saved["groups"]]:
        raise StateError(
            f"saved parameter groups {[g['names'] for g in saved['groups']]}", f"{live}", "build the same groups again"
        )
    parameters = dict(bare(model).named_parameters())
    position = {name: i for i, name in enumerate(name for names in live for name in names)}
    state: dict[int | str, Any] = dict(saved["own"])
    for name, values in saved["state"].items():
        for key, value in values.items():
            if isinstance(value, Tensor) and value.dim() and value.shape != parameters[name].shape:
                shape, own = tuple(value.shape), tuple(parameters[name].shape)
                if value.numel() == parameters[name].numel():
                    raise StateError(f"optimizer state {key} of {name} has shape {shape}", f"{own}", _OTHER)
        state[position[name]] = values
    groups = [
        {**{k: v for k, v in group.items() if k != "names"}, "params": [position[name] for name in names]}
        for group, names in zip(saved["groups"], live, strict=True)
    ]
    return {"state": state, "param_groups": groups}


# --- digests: what `prove` compares ----------------------------------------------------------------------------------


def leaves(saved: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, tensor or plain value) of every leaf of a saved state, in a fixed order."""
    if isinstance(saved, Mapping):
        for key in sorted(saved, key=str):
            yield from leaves(saved[key], f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(saved, list | tuple):
        for index, value in enumerate(saved):
            yield from leaves(value, f"{prefix}.{index}")
    else:
        yield prefix, saved


def leaf_bytes(value: Any) -> bytes:
    """The exact content of a leaf: dtype, shape and bits of a tensor; type and repr of a plain value."""
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        head = f"{plain.dtype}{tuple(plain.shape)}".encode()
        return head + plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{type(value).__name__}:{value!r}".encode()


def part_of(name: str) -> str:
    """The name under which a leaf is reported: parameters, buffers, optimizer.exp_avg, rng.torch, ema.weights, ..."""
    first, _, rest = name.partition(".")
    if first == "optimizer":
        kind, _, tail = rest.partition(".")
        return "optimizer." + (tail.rpartition(".")[2] if kind == "state" else kind)
    if first == "rng":
        kind, _, tail = rest.partition(".")
        return "rng." + (tail.split(".")[0] if kind == "generators" else kind)
    if first in {"ema", "best", "counters", "cursor", "stateful"}:
        return ".".join(name.split(".")[:2])
    return first


def digests(saved: Saved) -> dict[str, str]:
    """One short digest for each part, in the order in which a difference is reported (parameters first)."""
    hashes: dict[str, Any] = {}
    parameters = set(saved["model"]["trainable"])
    for name, value in leaves(saved):
        part = part_of(name)
        if part == "model":
            inner = name.partition(".")[2]
            group, _, own = inner.partition(".")
            stored = group in {"state", "hidden_buffers"}
            part = ("parameters" if own in parameters else "buffers") if stored else f"model.{group}"
        hashes.setdefault(part, hashlib.blake2b(digest_size=8)).update(name.encode() + b"\0" + leaf_bytes(value))
    order = ("parameters", "buffers", "optimizer", "ema", "schedule", "scaler", "counters", "cursor", "best", "rng")

    def place(part: str) -> tuple[int, str]:
        first = part.split(".")[0]
        return (order.index(first) if first in order else len(order), part)

    return {part: hashes[part].hexdigest() for part in sorted(hashes, key=place)}
