"""Devices: choosing one, moving batches to it, and what to record about it (lessons 00 and 08)."""

from __future__ import annotations

import copy
import dataclasses
import os
import platform
from collections.abc import Mapping, MutableMapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from labkit.errors import ConfigError

KINDS = ("cpu", "cuda", "mps")


def resolve(name: str | torch.device) -> torch.device:
    """The device called name: "cpu", "cuda", "cuda:1" or "mps".

    A bare "cuda" becomes the current CUDA device with its index, so that it equals the device of the tensors put there.
    Raises ConfigError for an unknown name and for a device this machine does not have.
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise _unknown(str(name)) from error
    if device.type not in KINDS:
        raise _unknown(str(name))
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type == "mps":
        if not torch.backends.mps.is_available():
            raise _absent(device)
        return torch.device("mps")
    if not torch.cuda.is_available():
        raise _absent(device)
    if device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    if device.index >= torch.cuda.device_count():
        raise _absent(device)
    return device


def _unknown(name: str) -> ConfigError:
    near = get_close_matches(name.split(":")[0], KINDS, n=1, cutoff=0.3)
    return ConfigError(
        f"device {name!r} is not a device labkit can train on",
        "one of cpu, cuda, cuda:<number>, mps",
        f"did you mean {near[0]!r}?" if near else "use 'cpu' when in doubt",
    )


def _absent(device: torch.device) -> ConfigError:
    return ConfigError(
        f"device {str(device)!r} is not available to torch {torch.__version__}",
        f"one of {', '.join(available())}",
        "choose one of these, or install a torch build and driver for the device",
    )


def available() -> list[str]:
    """Names of the devices that resolve accepts on this machine, "cpu" first."""
    names = ["cpu"] + [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return names + (["mps"] if torch.backends.mps.is_available() else [])


def to_device(batch: Any, device: torch.device | str) -> Any:
    """The same structure with every tensor on the device; the batch itself is not changed.

    Walks lists, tuples, named tuples, mappings and dataclass instances. Anything else with a `to` method moves itself
    (PackedSequence). The rest (numbers, text, None, numpy arrays) is handed through as it is. Copies to CUDA do not
    block; they are ordered before any work queued later.
    """
    return _moved(batch, device if isinstance(device, torch.device) else torch.device(device))


def _moved(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=device.type == "cuda")
    if isinstance(batch, type):
        return batch
    if callable(getattr(batch, "to", None)):
        return batch.to(device)
    if isinstance(batch, tuple):
        moved = [_moved(item, device) for item in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else tuple(moved)
    if isinstance(batch, list):
        return [_moved(item, device) for item in batch]
    if isinstance(batch, Mapping):
        return _moved_mapping(batch, device)
    if dataclasses.is_dataclass(batch):
        # Not dataclasses.replace: that runs __post_init__ again and refuses fields with init=False.
        moved_instance = copy.copy(batch)
        for field in dataclasses.fields(batch):
            object.__setattr__(moved_instance, field.name, _moved(getattr(batch, field.name), device))
        return moved_instance
    return batch


def _moved_mapping(batch: Mapping[Any, Any], device: torch.device) -> Any:
    moved = {key: _moved(value, device) for key, value in batch.items()}
    if type(batch) is dict:
        return moved
    if not isinstance(batch, MutableMapping):
        return moved
    kept = copy.copy(batch)  # an OrderedDict or defaultdict stays what it is
    kept.update(moved)
    return kept


def synchronize(device: torch.device) -> None:
    """Wait until everything queued on the device is done: a clock read before that measures the queue, not the work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def peak_memory_bytes(device: torch.device) -> int | None:
    """Highest memory use so far, in bytes; None where the system does not tell.

    CUDA: the peak of torch's own allocator on that device. CPU: the peak resident size of this process, everything
    included (interpreter, libraries, data).
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if device.type != "cpu":
        return None
    status = Path("/proc/self/status")
    if status.exists():  # unlike getrusage, this peak does not start at that of the process that launched us
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if platform.system() == "Darwin" else peak * 1024)


def describe(device: torch.device) -> dict[str, Any]:
    """What exactness depends on and what a reader of a record wants to know, as plain values.

    Keys: device, name, cpu, cpu_capability (the instruction set torch chose its kernels for), cpu_count, attention
    (the scaled-dot-product backends that are switched on), driver, and for CUDA also capability, memory_bytes, cuda,
    cudnn. What does not apply is None.
    """
    facts: dict[str, Any] = {
        "device": str(device),
        "name": _cpu_name(),
        "cpu": _cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_count": os.cpu_count(),
        "attention": _attention_backends(),
        "driver": None,
        "capability": None,
        "memory_bytes": None,
        "cuda": torch.version.cuda,
        "cudnn": None,
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts["name"] = properties.name
        facts["driver"] = _nvidia_driver()
        facts["capability"] = f"{properties.major}.{properties.minor}"
        facts["memory_bytes"] = int(properties.total_memory)
        facts["cudnn"] = torch.backends.cudnn.version()
    elif device.type == "mps":
        facts["name"] = f"Apple GPU ({platform.machine()})"
        facts["driver"] = platform.mac_ver()[0]
    return facts


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _nvidia_driver() -> str | None:
    version = Path("/proc/driver/nvidia/version")
    if not version.exists():
        return None
    lines = version.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[0].partition(":")[2].strip() if lines else None


def _attention_backends() -> list[str]:
    switches = {
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "memory_efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled(),
        "math": torch.backends.cuda.math_sdp_enabled(),
    }
    return [name for name, on in switches.items() if on]
