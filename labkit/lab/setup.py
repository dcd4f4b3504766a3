"""One call per notebook, and a fresh folder for the runs of a lesson. All lessons."""

from __future__ import annotations

import atexit
import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from labkit.errors import ConfigError


def setup(threads: int = 1) -> None:
    """Prepare this process for a lesson and say so in one line that reads the same on any machine.

    Only the thread count of torch is set: a large sum differs in its last bits between one thread and two.
    Calling it again is harmless. Raises ConfigError for fewer than one thread.
    """
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise ConfigError(f"threads={threads!r}", "a whole number, at least 1", "call lab.setup(threads=1)")
    torch.set_num_threads(threads)
    print(f"labkit is ready: {threads} thread{'s' if threads > 1 else ''}.")


@dataclass(frozen=True)
class Machine:
    """What differs between machines; show it only in a cell that is not compared."""

    python: str
    torch: str
    device: str
    threads: int

    def __str__(self) -> str:
        return f"This machine: Python {self.python}, torch {self.torch}, {self.device}, threads {self.threads}."

    __repr__ = __str__


def this_machine() -> Machine:
    """Versions and device of this process; put it in a cell tagged `nbval-ignore-output`."""
    device = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"CPU ({torch.backends.cpu.get_cpu_capability()})"
    )
    return Machine(platform.python_version(), torch.__version__, device, torch.get_num_threads())


def workspace(name: str = "lesson") -> Path:
    """A new empty folder for the runs of this lesson; another one at each call, removed when the kernel ends.

    Running a cell again therefore never continues an earlier run by accident. Set LABKIT_WORKSPACE to a folder to keep
    what is written: each call then makes a new folder inside it.
    """
    parent = os.environ.get("LABKIT_WORKSPACE")
    if parent:
        Path(parent).mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
    folder = Path(tempfile.mkdtemp(prefix=f"labkit-{name}-"))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked worker that ends must not take its parent's runs away
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def is_quiet() -> bool:
    """True where nobody watches: continuous integration, tests, or the re-execution of stored notebooks."""
    return any(os.environ.get(name) for name in ("CI", "LABKIT_QUIET", "PYTEST_CURRENT_TEST"))
