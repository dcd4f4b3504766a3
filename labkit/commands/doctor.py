"""labkit doctor: is everything here that the lessons and a run need? One fix line for each failure."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.commands.words import add_json, show
from labkit.errors import LabkitError

NEEDED_BYTES = 2 * 10**9
_PACKAGES = (("kernel", "ipykernel"), ("widgets", "ipywidgets"), ("lab", "jupyterlab"))


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's table; fix is given when it is not well."""

    what: str
    well: bool
    seen: str
    fix: str = ""

    def __str__(self) -> str:
        line = f"{'ok  ' if self.well else 'FAIL'} {self.what:<10} {self.seen}"
        return line if self.well else f"{line}\n     fix: {self.fix}"


def add(verbs: Any) -> None:
    """Describe the verb of this page."""
    verb = verbs.add_parser("doctor", help="is everything here that is needed")
    verb.description = "Python, torch, device, threads, kernel, widgets, data, disk; one fix line for each failure."
    add_json(verb)
    verb.set_defaults(run=_doctor)


def _doctor(asked: argparse.Namespace) -> int:
    findings = examine()
    text = "\n".join(map(str, findings))
    bad = sum(not finding.well for finding in findings)
    text += f"\n{'all well' if not bad else f'{bad} to fix'}"
    show(asked, text, [vars(finding) for finding in findings])
    return 1 if bad else 0


def examine() -> list[Finding]:
    """Look at this environment; nothing is changed."""
    packages = [_package(what, name) for what, name in _PACKAGES]
    return [_python(), _torch(), _device(), _threads(), *packages, _data(), _disk()]


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", sys.version_info >= (3, 11), version, "install Python 3.11 or newer")


def _torch() -> Finding:
    import torch

    tested = "2.10" <= _two(torch.__version__)
    return Finding("torch", tested, str(torch.__version__), "pip install 'torch>=2.10,<3'")


def _two(version: str) -> str:
    major, minor = version.split(".")[:2]
    return f"{major}.{int(minor):02d}"


def _device() -> Finding:
    import torch

    if torch.cuda.is_available():
        return Finding("device", True, f"cuda, {torch.cuda.get_device_name()}; CPU is enough for every lesson")
    return Finding("device", True, f"cpu, {torch.backends.cpu.get_cpu_capability()}; enough for every lesson")


def _threads() -> Finding:
    import torch

    return Finding("threads", True, f"{torch.get_num_threads()} by default; runs use the number in their config, 1")


def _package(what: str, name: str) -> Finding:
    try:
        importlib.import_module(name)
        return Finding(what, True, f"{name} {importlib.metadata.version(name)}")
    except ImportError as error:
        return Finding(what, False, f"{name} cannot be imported ({error})", f"pip install {name}")


def _data() -> Finding:
    from labkit.recipes import shipped

    return _try("data", shipped.damaged)


def _try(what: str, look: Callable[[], list[str]]) -> Finding:
    try:
        bad = look()
    except LabkitError as error:
        return Finding(what, False, error.found, error.do or "install labkit again")
    return Finding(what, not bad, ", ".join(bad) or "every digest as stated", "restore data/ from the repository")


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    seen = f"{free / 1e9:.1f} GB free in this folder"
    return Finding("disk", free > NEEDED_BYTES, seen, "free some space, or work in another folder")
