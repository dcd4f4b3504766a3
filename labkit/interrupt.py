"""Being told to stop: handlers that only set a flag, read where stopping is safe. Lesson 11.

First SIGINT or SIGTERM: the run ends at the next boundary, with a checkpoint. Second: KeyboardInterrupt at once, which
leaves the live objects torn and the checkpoints as they are. SIGUSR1, where it exists, asks for a checkpoint.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Wishes:
    """What the outside world asked for since the last boundary."""

    stop: str | None = None  # the reason, "SIGINT", "SIGTERM" or the caller's own words
    save: bool = False
    by_signal: bool = False  # stop was asked for by SIGINT or SIGTERM

    def forget_stop(self) -> None:
        """The stop was obeyed, or overtaken by an error."""
        self.stop, self.by_signal = None, False

    def request_stop(self, reason: str = "asked to stop") -> None:
        """Ask for a stop at the next boundary; safe from any thread."""
        self.stop = self.stop or reason

    def request_save(self) -> None:
        """Ask for a checkpoint at the next boundary; safe from any thread."""
        self.save = True


@contextmanager
def listening(wishes: Wishes) -> Iterator[bool]:
    """Handle SIGINT, SIGTERM and SIGUSR1 inside; whatever was installed before is put back in any case.

    Yields False, installing nothing, outside the main thread, where Python allows no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield False
        return

    def on_stop(number: int, frame: FrameType | None) -> None:
        if wishes.stop is not None:
            raise KeyboardInterrupt(f"second request to stop (first: {wishes.stop})")
        wishes.request_stop(signal.Signals(number).name)
        wishes.by_signal = True

    def on_save(number: int, frame: FrameType | None) -> None:
        wishes.request_save()

    handlers: dict[signal.Signals, signal.Handlers | Callable[[int, FrameType | None], None]]
    handlers = {signal.SIGINT: on_stop, signal.SIGTERM: on_stop}
    if hasattr(signal, "SIGUSR1"):
        handlers[signal.SIGUSR1] = on_save
    before = {number: signal.getsignal(number) for number in handlers}
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        yield True
    finally:
        for number, earlier in before.items():
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)
