"""A run in memory: live objects, the feed, the loop and the run's random streams, without a folder. Lesson 04.

The run's streams are in place only inside working(); outside, the caller's own are. So drawing numbers between two
calls, or running two engines in one process, changes neither of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from labkit import randomness
from labkit.build import Parts, build, build_feed
from labkit.config import RunConfig
from labkit.evaluate import decide, evaluate_state, metric_value
from labkit.loop import Attempt, Loop
from labkit.order import Cursor
from labkit.recipe import Recipe
from labkit.records.stages import Stages
from labkit.state import RunState, Saved, cloned
from labkit.weighting import Total


@dataclass(frozen=True)
class Evaluation:
    """The record of one evaluation and of what was decided from it."""

    attempt: int  # attempts made before it
    update: int  # committed updates of the evaluated weights
    totals: dict[str, Total]
    best: bool
    without_improvement: int
    rates_next: tuple[float, ...]


class Engine:
    """What trains. Made from parts whose state is new or restored; the feed starts at the state's cursor."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.config = parts.config
        self.stages = Stages(parts.config.profile, parts.config.device)
        self._streams = randomness.capture(parts.state.generators, parts.state.devices)
        self._at_work = False
        self._feed = build_feed(parts, parts.config)
        self._feed.at(parts.state.cursor)
        self.loop = Loop(parts.recipe, parts.config, parts.state, self._feed, self.stages)

    @property
    def state(self) -> RunState:
        return self.parts.state

    def change(self, config: RunConfig) -> None:
        """Go on under a config that differs in fields that may change."""
        self.config = self.loop.config = config
        self.parts = replace(self.parts, config=config)

    @contextmanager
    def working(self) -> Iterator[None]:
        """The run's random streams inside, the caller's outside; inside itself it changes nothing."""
        if self._at_work:
            yield
            return
        callers = randomness.capture()
        randomness.restore(self._streams, self.state.generators, self.state.devices)
        self._at_work = True
        try:
            yield
        finally:
            self._at_work = False
            self._streams = randomness.capture(self.state.generators, self.state.devices)
            randomness.restore({**callers, "generators": {}})

    def update(self) -> Attempt:
        """One attempt at an update; inside working()."""
        return self.loop.update()

    def evaluation_due(self) -> bool:
        """Whether this boundary asks for an evaluation that was not made yet."""
        every, counters = self.config.eval_every, self.state.counters
        asked = every > 0 and counters.committed > 0 and counters.committed % every == 0
        return asked and counters.evaluated_update != counters.committed

    def evaluate_if_due(self, should_stop: Callable[[], bool] = lambda: False) -> Evaluation | None:
        """Evaluate and decide, if this boundary asks for it and it was not done; inside working().

        Told to stop in between, nothing is counted: the evaluation is done again after the resume.
        """
        state, config, counters = self.state, self.config, self.state.counters
        if not self.evaluation_due():
            return None
        self.stages.enter("evaluation")
        splits = self.parts.splits
        totals = evaluate_state(state, self.parts.recipe, config, splits.train, splits.validation, should_stop)
        if totals is None:
            return None
        counters.evaluations += 1
        counters.evaluated_update = counters.committed
        best = decide(state.best, config, totals, counters.committed)
        if config.schedule_clock == "validation":
            state.schedule.advance(counters.evaluations, metric_value(config, totals))
        rates = tuple(float(group["lr"]) for group in state.optimizer.param_groups)
        return Evaluation(
            counters.attempted, counters.committed, totals, best, state.best.without_improvement, rates
        )  # fmt: skip

    def run(self, updates: int, observe: Callable[[Attempt], None] | None = None) -> None:
        """Attempts until so many updates are committed, with the evaluations that are due."""
        with self.working():
            self.evaluate_if_due()
            while self.state.counters.committed < updates:
                record = self.update()
                self.evaluate_if_due()
                if observe is not None:
                    with randomness.preserved(self.state.generators, self.state.devices):
                        observe(record)

    def capture(self) -> Saved:
        """A copy of the whole state, with the run's own random streams; later updates do not change it."""
        with self.working():
            return cloned(self.state.capture())

    def restore(self, saved: Saved) -> None:
        """Put a captured state in and set the feed to its cursor. Raises StateError before anything changes."""
        if "cursor" in saved and {"epoch", "examples"} == set(saved["cursor"]):  # anything else is refused below
            self._feed.check(Cursor(**saved["cursor"]))
        with self.working():
            self.state.restore(saved)
        self._feed.at(self.state.cursor)
        self.loop.torn = None

    def close(self) -> None:
        """Stop the workers."""
        self._feed.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def open_engine(recipe: Recipe, config: RunConfig) -> Engine:
    """A new run in memory. The caller's random streams are left as they were."""
    callers = randomness.capture()
    try:
        return Engine(build(recipe, config))
    finally:
        randomness.restore({**callers, "generators": {}})
