"""One line that moves while a long run works: a widget value, a terminal line, or nothing where nobody watches.

All lessons. The output is bounded: a run of a million updates leaves one line behind.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

import ipywidgets
from IPython import get_ipython
from IPython.display import display

from labkit.lab.setup import is_quiet


class Progress:
    """`with Progress(200) as progress: progress.show(update)`; refreshed at most ten times a second.

    total: how many updates there will be. Under CI, tests and stored executions it is silent, and in a notebook it
    assigns one widget value, so neither a line per update nor a growing cell can happen.
    """

    def __init__(
        self, total: int, what: str = "update", out: TextIO | None = None, quiet: bool | None = None, every: float = 0.1
    ) -> None:
        self.total, self.what, self.out, self.every = total, what, out or sys.stderr, every
        self.quiet = is_quiet() if quiet is None else quiet
        self.line: ipywidgets.HTML | None = None
        self._next = 0.0
        self._open = False

    def __enter__(self) -> Progress:
        if not self.quiet and _in_notebook():
            self.line = ipywidgets.HTML(value=self._text(0, ""))
            display(self.line)
        return self

    def show(self, done: int, note: str = "") -> None:
        """Say how far the run is; cheap when it is not yet time to refresh."""
        now = time.monotonic()
        if self.quiet or (now < self._next and done < self.total):
            return
        self._next = now + self.every
        text = self._text(done, note)
        if self.line is not None:
            self.line.value = text
        elif self.out.isatty():
            self.out.write("\r\x1b[2K" + text[:100])
            self.out.flush()
            self._open = True

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open:
            self.out.write("\n")
            self.out.flush()
            self._open = False

    def _text(self, done: int, note: str) -> str:
        return f"{self.what} {done} of {self.total}" + (f" · {note}" if note else "")


def _in_notebook() -> bool:
    shell = get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None
