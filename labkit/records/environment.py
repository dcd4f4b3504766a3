"""environment.json: everything outside the config that a number may depend on. Lesson 10.

Nothing here can fail a run: what cannot be read is recorded as {"unreadable": why}.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from labkit.records.revision import git_state, git_top
from labkit.records.values import FORMAT

_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_VISIBLE_DEVICES",
    "KMP_AFFINITY",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
"""The environment variables that may bend numbers. No other is recorded: they may hold secrets."""


def environment(repo_hint: Path | str | None = None, device: torch.device | str | None = None) -> dict[str, Any]:
    """Describe this process for environment.json: plain values only.

    repo_hint is a file or folder of the user's code (default: the current folder); its git commit and the whole patch
    of uncommitted changes are included, and labkit's own as well when it lives in another repository. device is the one
    trained on; a CUDA device is only asked about when it is given or already in use, so looking starts no driver.
    """
    place = Path(repo_hint) if repo_hint is not None else Path.cwd()
    own = Path(__file__).resolve().parent
    return {
        "format": FORMAT,
        "python": _read(lambda: {"version": platform.python_version(), "build": sys.version}),
        "system": _read(
            lambda: {
                "platform": platform.platform(),
                "machine": platform.machine(),
                "cpu": _cpu_name(),
                "cpus": os.cpu_count(),
            }
        ),
        "packages": _read(_packages),
        "torch": _read(
            lambda: {
                "version": str(torch.__version__),
                "git": torch.version.git_version,
                "cuda": torch.version.cuda,
                "hip": torch.version.hip,
                "build": torch.__config__.show(),
            }
        ),
        "cpu_capability": _read(torch.backends.cpu.get_cpu_capability),
        "threads": _read(lambda: {"intra": torch.get_num_threads(), "inter": torch.get_num_interop_threads()}),
        "device": _read(lambda: _device(device)),
        "determinism": _determinism(),
        "numeric": _numeric(),
        "attention": _attention(),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "git": _read(lambda: git_state(place)),
        "labkit_git": _read(lambda: None if git_top(own) == git_top(place) else git_state(own)),
    }


def _read(ask: Callable[[], Any]) -> Any:
    """The answer, or the recorded reason why there is none."""
    try:
        return ask()
    except Exception as error:  # a description must never stop the run that it describes
        return {"unreadable": f"{type(error).__name__}: {error}"}


def _packages() -> dict[str, str]:
    found = dict[str, str]()
    for distribution in importlib.metadata.distributions():
        # The folder name says both and is much cheaper than parsing every METADATA file.
        match = re.fullmatch(r"(.+?)-([^-]+)\.(?:dist|egg)-info", Path(str(getattr(distribution, "_path", ""))).name)
        name, version = match.groups() if match else (distribution.metadata["Name"], distribution.version)
        found.setdefault(str(name).replace("_", "-").lower(), str(version))
    return dict(sorted(found.items()))


def _cpu_name() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _device(device: torch.device | str | None) -> dict[str, Any]:
    kind = torch.device(device or ("cuda" if torch.cuda.is_initialized() else "cpu"))
    if kind.type != "cuda":
        return {"type": kind.type}
    properties = torch.cuda.get_device_properties(kind)
    driver = Path("/proc/driver/nvidia/version")
    return {
        "type": "cuda",
        "name": properties.name,
        "capability": [properties.major, properties.minor],
        "memory_bytes": properties.total_memory,
        "visible": torch.cuda.device_count(),
        "driver": _read(lambda: driver.read_text().splitlines()[0]),
        "cudnn": torch.backends.cudnn.version(),
    }


def _determinism() -> dict[str, Any]:
    return {
        "algorithms": _read(torch.are_deterministic_algorithms_enabled),
        "warn_only": _read(torch.is_deterministic_algorithms_warn_only_enabled),
        "fill_uninitialized_memory": _read(lambda: torch.utils.deterministic.fill_uninitialized_memory),  # type: ignore[attr-defined]
        "cudnn_deterministic": _read(lambda: torch.backends.cudnn.deterministic),
        "cudnn_benchmark": _read(lambda: torch.backends.cudnn.benchmark),
    }


def _numeric() -> dict[str, Any]:
    """Reading a legacy switch after the new one was set is an error in torch; that, too, is then recorded."""
    return {
        "default_dtype": _read(lambda: str(torch.get_default_dtype())),
        "matmul_precision": _read(torch.get_float32_matmul_precision),
        "cuda_matmul_tf32": _read(lambda: torch.backends.cuda.matmul.allow_tf32),
        "cudnn_tf32": _read(lambda: torch.backends.cudnn.allow_tf32),
        "cuda_matmul_fp32": _read(lambda: torch.backends.cuda.matmul.fp32_precision),
        "cudnn_conv_fp32": _read(lambda: torch.backends.cudnn.conv.fp32_precision),  # type: ignore[attr-defined]
        "reduced_bf16": _read(lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
        "reduced_fp16": _read(lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction),
        "flush_denormal": None,  # torch can set it, not tell it
        "autocast": {
            kind: _read(
                lambda kind=kind: {
                    "enabled": torch.is_autocast_enabled(kind),  # type: ignore[misc]
                    "dtype": str(torch.get_autocast_dtype(kind)),
                }
            )
            for kind in ("cpu", "cuda")
        },
    }


def _attention() -> dict[str, Any]:
    return {
        "flash": _read(torch.backends.cuda.flash_sdp_enabled),
        "memory_efficient": _read(torch.backends.cuda.mem_efficient_sdp_enabled),
        "math": _read(torch.backends.cuda.math_sdp_enabled),
        "cudnn": _read(torch.backends.cuda.cudnn_sdp_enabled),
    }
