"""Fresh Python processes that find labkit and the user's modules where this one does. Lessons 00, 04 and 08."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def begin(*arguments: str) -> subprocess.Popen[str]:
    """Start `python arguments...`, with pipes of text for what it says and nothing to read.

    It leads a session of its own: Ctrl-C reaches the process that started it, which then decides about its children.
    """
    return subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **_common())


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The same, waited for: its status and what it said. Interrupted here, it is killed there."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, **_common())


def last_words(said: str, status: int) -> str:
    """The last line that a failed process wrote, for an error; its exit status when it wrote nothing."""
    lines = said.strip().splitlines()
    return lines[-1] if lines else f"status {status}"


def _common() -> dict[str, Any]:
    path = [str(Path(__file__).resolve().parents[1]), *filter(None, sys.path)]
    return {
        "stdin": subprocess.DEVNULL,
        "text": True,
        "env": {**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        "start_new_session": os.name == "posix",
    }
