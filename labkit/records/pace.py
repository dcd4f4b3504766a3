"""How fast this segment goes, how fast the whole run went, and how long is left. Lesson 08.

A segment is what one process does between a start or resume and its end. An estimate divides this segment's work by
this segment's time, never the whole history by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

Unit = Literal["updates", "examples", "tokens"]
_UNITS: tuple[Unit, ...] = ("updates", "examples", "tokens")


class Pace:
    """Counts committed work against a clock. Give the totals that earlier segments left; evaluation is not work.

    The first `warmup` updates of every segment (allocation, compilation) count in the time, not in the steady rate.
    """

    def __init__(
        self,
        updates: int = 0,
        examples: int = 0,
        tokens: int = 0,
        seconds: float = 0.0,
        warmup: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._before = {"updates": updates, "examples": examples, "tokens": tokens}
        self._now = dict.fromkeys(_UNITS, 0)
        self._at_warm: dict[Unit, int] | None = None
        self._seconds_before, self._warmup, self._clock = seconds, warmup, clock
        self._begun = self._warm = clock()
        if warmup == 0:
            self._at_warm = dict(self._now)

    def add(self, examples: int, tokens: int, updates: int = 1) -> None:
        """One committed update (or several). Skipped attempts are left out."""
        now = self._now
        now["updates"] += updates
        now["examples"] += examples
        now["tokens"] += tokens
        if self._at_warm is None and now["updates"] >= self._warmup:
            self._at_warm, self._warm = dict(now), self._clock()

    @property
    def segment_seconds(self) -> float:
        """Seconds since this segment began."""
        return self._clock() - self._begun

    @property
    def total_seconds(self) -> float:
        """Training seconds of all segments together; the pauses between them are not in it."""
        return self._seconds_before + self.segment_seconds

    @property
    def warmup_seconds(self) -> float | None:
        """Seconds until the warm-up updates of this segment were done; None before that."""
        return None if self._at_warm is None else self._warm - self._begun

    def total(self, unit: Unit) -> int:
        """Work done by all segments."""
        return self._before[unit] + self._now[unit]

    def steady_rate(self, unit: Unit = "updates") -> float | None:
        """Work a second of this segment after its warm-up; None while unknown."""
        if self._at_warm is None:
            return None
        return _rate(self._now[unit] - self._at_warm[unit], self._clock() - self._warm)

    def segment_rate(self, unit: Unit = "updates") -> float | None:
        """Work a second of this segment, warm-up included; None while unknown."""
        return _rate(self._now[unit], self.segment_seconds)

    def overall_rate(self, unit: Unit = "updates") -> float | None:
        """Work of all segments over seconds of all segments; None while unknown."""
        return _rate(self.total(unit), self.total_seconds)

    def seconds_left(self, target: int, unit: Unit = "updates") -> float | None:
        """Seconds until the total reaches `target` at the steady rate; None while unknown, 0.0 once reached."""
        left = max(0, target - self.total(unit))
        rate = self.steady_rate(unit)
        if left == 0:
            return 0.0
        return None if rate is None else left / rate


def in_words(seconds: float | None) -> str:
    """A duration for people: "unknown", "45 s", "12 min", "3.5 h", "2.1 days"."""
    if seconds is None:
        return "unknown"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def _rate(work: int, seconds: float) -> float | None:
    return work / seconds if work > 0 and seconds > 0 else None
