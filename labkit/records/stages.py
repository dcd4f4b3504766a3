"""Stages of a run: one context that says where time goes and where a failure happened. Lessons 08 and 10."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from labkit.errors import RecordsError

STAGES = ("data", "build", "restore", "first forward", "forward", "backward", "measure", "optimizer", "ema", "record",
          "evaluation", "publish", "export", "transfer")
OTHER = "other"
"""Time of the profile that no stage claims."""


class Stages:
    """`with stage("forward"): ...` where `stage = Stages()`; made once for a run and used from its main thread.

    Whatever the setting, an error that leaves a stage remembers it (see `failure_stage`). With profile=True the time
    of every stage is counted as well; stages may nest, and time belongs to the innermost. On a CUDA device time is
    taken from events in its queue, so nothing waits until the sums are asked for.
    """

    def __init__(self, profile: bool = False, device: torch.device | str = "cpu",
                 clock: Callable[[], float] = time.perf_counter) -> None:
        self.profile = profile
        kind = torch.device(device)
        self._timer: _Timer = _EventTimer(kind) if profile and kind.type == "cuda" else _Timer(clock)
        self._contexts: dict[str, _Stage] = {
            name: _TimedStage(name, self._timer) if profile else _Stage(name) for name in STAGES
        }

    def __call__(self, name: str) -> _Stage:
        """The context of one stage; it holds no state, so the same one can be entered again and again."""
        try:
            return self._contexts[name]
        except KeyError:
            raise RecordsError(f"unknown stage {name!r}", "one of " + ", ".join(STAGES)) from None

    def take(self) -> Profile:
        """The times since the last take (or since this was made), and begin anew. Empty when the profile is off."""
        return self._timer.take() if self.profile else Profile({}, 0.0, 0.0)


@dataclass(frozen=True)
class Profile:
    """Seconds by stage, "other" included, over `wall` seconds; `overhead` is an estimate of what profiling cost."""

    seconds: dict[str, float]
    wall: float
    overhead: float

    def __str__(self) -> str:
        ranked = sorted(self.seconds.items(), key=lambda entry: -entry[1])
        lines = [f"{name:<14}{value:>10.4f} s {value / self.wall:>7.1%}" for name, value in ranked if self.wall > 0]
        return "\n".join([*lines, f"{'wall':<14}{self.wall:>10.4f} s, of which profiling about {self.overhead:.4f} s"])


def failure_stage(error: BaseException | None) -> str | None:
    """The innermost stage that the error, or the one that caused it, left; None when it passed through no stage."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        stage = getattr(error, _MARK, None)
        if isinstance(stage, str):
            return stage
        error = error.__cause__ or error.__context__
    return None


_MARK = "_labkit_stage"
_Kind = type[BaseException] | None


class _Stage:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: _Kind, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and failure_stage(error) is None:
            setattr(error, _MARK, self.name)


class _TimedStage(_Stage):
    __slots__ = ("_timer",)

    def __init__(self, name: str, timer: _Timer) -> None:
        super().__init__(name)
        self._timer = timer

    def __enter__(self) -> None:
        self._timer.enter(self.name)

    def __exit__(self, kind: _Kind, error: BaseException | None, trace: TracebackType | None) -> None:
        self._timer.leave()
        super().__exit__(kind, error, trace)


class _Timer:
    """Attributes the time between two boundaries to the innermost open stage."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._open = clock, [OTHER]
        self._seconds, self._boundaries = dict[str, float](), 0
        self._last = self._begun = self._clock()

    def enter(self, name: str) -> None:
        self._mark()
        self._open.append(name)

    def leave(self) -> None:
        self._mark()
        self._open.pop()

    def _mark(self) -> None:
        now, name = self._clock(), self._open[-1]
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now
        self._boundaries += 1

    def _copy(self) -> _Timer:
        return _Timer(self._clock)

    def take(self) -> Profile:
        self._mark()
        profile = Profile(self._seconds, self._last - self._begun, self._boundaries * self._cost())
        self._seconds, self._boundaries, self._begun = {}, 0, self._last
        return profile

    def _cost(self) -> float:
        """Seconds that one boundary costs, measured now on a copy."""
        copy, begun = self._copy(), time.perf_counter()
        for _ in range(500):
            copy.enter(OTHER)
            copy.leave()
        return (time.perf_counter() - begun) / 1000


class _EventTimer(_Timer):
    """The same on a CUDA queue: boundaries are events, and only `take` waits for them."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._free, self._pending = device, list[Any](), list[tuple[str, Any]]()
        super().__init__(time.perf_counter)
        self._first = self._record()

    def _record(self) -> Any:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _copy(self) -> _Timer:
        return _EventTimer(self._device)

    def _mark(self) -> None:
        self._pending.append((self._open[-1], self._record()))
        self._boundaries += 1

    def take(self) -> Profile:
        self._mark()
        before, seconds, count = self._first, dict[str, float](), self._boundaries
        self._pending[-1][1].synchronize()
        for name, event in self._pending:
            seconds[name] = seconds.get(name, 0.0) + before.elapsed_time(event) / 1000
            self._free.append(before)
            before = event
        self._first, self._pending, self._boundaries = before, [], 0
        return Profile(seconds, sum(seconds.values()), count * self._cost())
