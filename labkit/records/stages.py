"""Which stage of the work is running: one mark that serves the profile and names where a failure happened. Lesson 08.

`enter(name)` ends the stage before it and starts the next, so the seconds of all stages add up to the time between
the first and the last mark, with nothing between them. Without a profile a mark is one assignment.
"""

from __future__ import annotations

import time
from collections.abc import Callable

STAGES = (
    "data", "build", "restore", "transfer", "forward", "backward", "measure", "optimizer", "ema", "record",
    "evaluation", "publish", "export",
)  # fmt: skip


class Stages:
    """The present stage, and, when profiling, the seconds spent in each and how often it was entered.

    synchronize is called at each mark while profiling, so that work queued on an accelerator is charged to its stage.
    """

    def __init__(self, profile: bool = False, synchronize: Callable[[], None] | None = None) -> None:
        self.present = "build"
        self.seconds: dict[str, float] = {}
        self.entered: dict[str, int] = {}
        self._profile, self._synchronize = profile, synchronize
        self._since = time.perf_counter()

    def enter(self, name: str) -> None:
        """The stage before ends here, this one begins."""
        if self._profile:
            self._account()
            self.entered[name] = self.entered.get(name, 0) + 1
        self.present = name

    def _account(self) -> None:
        if self._synchronize is not None:
            self._synchronize()
        now = time.perf_counter()
        self.seconds[self.present] = self.seconds.get(self.present, 0.0) + now - self._since
        self._since = now

    def report(self) -> dict[str, float]:
        """Seconds by stage up to this moment; empty when not profiling."""
        if self._profile:
            self._account()
        return dict(self.seconds)

    @property
    def marks(self) -> int:
        """How many marks were set: times the cost of one, the profile's own overhead."""
        return sum(self.entered.values())
