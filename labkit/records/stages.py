"""Stages of a run: one small object that says where time goes and where a failure happened. Lessons 08 and 10."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from labkit.errors import RecordsError

STAGES = ("data", "build", "restore", "first forward", "forward", "backward", "measure", "optimizer", "ema", "record",
          "evaluation", "publish", "export", "transfer")  # fmt: skip
OTHER = "other"
"""Time of the profile that no stage claims."""

_KNOWN = frozenset((*STAGES, OTHER))


class Stages:
    """Made once for a run, used from its main thread, in two ways that mix.

    `stages.enter("forward")` in straight-line code: from here on it is this stage, until the next one is entered.
    `with stages("evaluation"):` around a block: a stage of its own, after which the outer one goes on.

    Either way an error can be placed afterwards: `stages.failed(error)`. With profile=True the time of every stage is
    counted as well, and belongs to the innermost one; on a CUDA device it is taken from events in the queue, so nothing
    waits until `take`. With profile=False no clock is read. The first "forward" entered is called "first forward".
    """

    def __init__(self, profile: bool = False, device: torch.device | str = "cpu",
                 clock: Callable[[], float] = time.perf_counter) -> None:  # fmt: skip
        self._open = [OTHER]
        kind = torch.device(device)
        self._timer: _Timer | None = None
        if profile:
            self._timer = _EventTimer(kind) if kind.type == "cuda" else _Timer(clock)
        self._contexts = {name: _Stage(name, self._open, self._timer) for name in STAGES}
        self.enter: Callable[[str], None] = self._enter_until_forward
        """Go over to the stage of this name."""

    @property
    def present(self) -> str:
        """The stage that the run is in, "other" before the first."""
        return self._open[-1]

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """The context of one stage; it may be kept, entered again and nested."""
        _check(name)
        return self._contexts[name]

    def failed(self, error: BaseException) -> str | None:
        """The stage in which the error arose; None when that was outside of every stage."""
        stage = failure_stage(error) or self.present
        return None if stage == OTHER else stage

    def take(self) -> Profile:
        """The times since the last take (or since this was made), and begin anew. Empty when the profile is off."""
        return Profile({}, 0.0, 0.0) if self._timer is None else self._timer.take(self.present)

    def _enter_until_forward(self, name: str) -> None:
        go = self._enter_quiet if self._timer is None else self._enter_timed
        if name == "forward":
            self.enter, name = go, "first forward"
        go(name)

    def _enter_quiet(self, name: str) -> None:
        if name not in _KNOWN:
            _check(name)
        self._open[-1] = name

    def _enter_timed(self, name: str) -> None:
        _check(name)
        assert self._timer is not None
        self._timer.mark(self._open[-1])
        self._open[-1] = name


def _check(name: str) -> None:
    if name not in _KNOWN:
        raise RecordsError(f"unknown stage {name!r}", "one of " + ", ".join(STAGES))


@dataclass(frozen=True)
class Profile:
    """Seconds by stage, "other" included, over `wall` seconds; `overhead` estimates what profiling itself took."""

    seconds: dict[str, float]
    wall: float
    overhead: float

    def __str__(self) -> str:
        ranked = sorted(self.seconds.items(), key=lambda entry: -entry[1])
        lines = [f"{name:<14}{value:>10.4f} s {value / self.wall:>7.1%}" for name, value in ranked if self.wall > 0]
        return "\n".join([*lines, f"{'wall':<14}{self.wall:>10.4f} s, of which profiling about {self.overhead:.4f} s"])


def failure_stage(error: BaseException | None) -> str | None:
    """The innermost `with` stage that the error, or one that caused it, left; None when it passed through none."""
    for link in _chain(error):
        stage = getattr(link, _MARK, None)
        if isinstance(stage, str):
            return stage
    return None


_MARK = "_labkit_stage"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


class _Stage:
    """One stage as a context. The stack is that of its Stages, so entering twice nests."""

    __slots__ = ("_name", "_open", "_timer")

    def __init__(self, name: str, open_stages: list[str], timer: _Timer | None) -> None:
        self._name, self._open, self._timer = name, open_stages, timer

    def __enter__(self) -> None:
        if self._timer is not None:
            self._timer.mark(self._open[-1])
        self._open.append(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and failure_stage(error) is None:
            setattr(error, _MARK, self._open[-1])
        if self._timer is not None:
            self._timer.mark(self._open[-1])
        self._open.pop()


class _Timer:
    """Gives the time since the last mark to a stage."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._seconds, self._marks = clock, dict[str, float](), 0
        self._last = self._begun = clock()

    def mark(self, name: str) -> None:
        now = self._clock()
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now
        self._marks += 1

    def take(self, name: str) -> Profile:
        self.mark(name)
        profile = Profile(self._seconds, self._last - self._begun, self._marks * self._cost())
        self._seconds, self._marks, self._begun = {}, 0, self._last
        return profile

    def _cost(self) -> float:
        """Seconds that one mark takes, measured now on a copy."""
        copy, begun = self._copy(), time.perf_counter()
        for _ in range(200):
            copy.mark(OTHER)
        return (time.perf_counter() - begun) / 200

    def _copy(self) -> _Timer:
        return _Timer(time.perf_counter)


class _EventTimer(_Timer):
    """The same on a CUDA queue: marks are events, and only `take` waits for them."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(time.perf_counter)
        self._device, self._free, self._pending = device, list[Any](), list[tuple[str, Any]]()
        self._first = self._record()

    def _record(self) -> Any:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def mark(self, name: str) -> None:
        self._pending.append((name, self._record()))

    def take(self, name: str) -> Profile:
        self.mark(name)
        before, seconds, count = self._first, dict[str, float](), len(self._pending)
        self._pending[-1][1].synchronize()
        for stage, event in self._pending:
            seconds[stage] = seconds.get(stage, 0.0) + before.elapsed_time(event) / 1000
            self._free.append(before)
            before = event
        self._first, self._pending = before, []
        return Profile(seconds, sum(seconds.values()), count * self._cost())

    def _copy(self) -> _Timer:
        return _EventTimer(self._device)
