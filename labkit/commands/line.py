"""The progress line of a run: what is done, how fast this segment goes, how long is left. Lesson 08.

tqdm draws it, the numbers are ours: an estimate divides this segment's work by this segment's time, and a target may be
in updates, epochs, examples, tokens or seconds, of which the first one reached ends the run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from labkit.commands.words import for_people
from labkit.config import RunConfig
from labkit.loop import Attempt
from labkit.plan import planned_updates
from labkit.records.pace import Pace, in_words
from labkit.run import Session

EVERY = 0.1


def seconds_left(pace: Pace, config: RunConfig, length: int) -> float | None:
    """Seconds until the first of the goals is reached, by this segment's pace; None while that is unknown.

    length: examples of the training split, for a goal in epochs.
    """
    guesses: list[float | None] = []
    if config.updates is not None:
        guesses.append(pace.seconds_left(config.updates, "updates"))
    if config.epochs is not None:
        guesses.append(pace.seconds_left(config.epochs * length, "examples"))
    if config.examples is not None:
        guesses.append(pace.seconds_left(config.examples, "examples"))
    if config.tokens is not None:
        guesses.append(pace.seconds_left(config.tokens, "tokens"))
    if config.seconds is not None:
        guesses.append(max(0.0, config.seconds - pace.total_seconds))
    known = [guess for guess in guesses if guess is not None]
    return min(known) if known and (len(known) == len(guesses) or min(known) == 0) else None


class Line:
    """Watches a run: reads records and writes to the terminal, nothing else; a few times a second at most."""

    def __init__(self, session: Session, bar: Any) -> None:
        counters = session.state.counters
        self._session, self._bar = session, bar
        self._length, self._next = len(session.parts.splits.train), 0.0
        self._examples, self._tokens, self._updates = counters.examples, counters.tokens, counters.committed
        self.pace = Pace(self._updates, self._examples, self._tokens, session.seconds_used)

    def __call__(self, record: Attempt) -> None:
        made = record.update - self._updates
        if made:
            self.pace.add(record.examples - self._examples, record.tokens - self._tokens, made)
            self._updates, self._examples, self._tokens = record.update, record.examples, record.tokens
        now = time.monotonic()
        if now >= self._next and record.loss_count:
            self._next = now + EVERY
            self._bar.set_postfix_str(self.words(record), refresh=False)
            self._bar.update(record.update - self._bar.n)

    def words(self, record: Attempt) -> str:
        """Loss, rate and time left, as the line shows them."""
        rate = self.pace.steady_rate()
        left = in_words(seconds_left(self.pace, self._session.config, self._length))
        speed = "" if rate is None else f", {rate:.3g} updates/s"
        return f"loss {record.loss_sum / record.loss_count:.4f}{speed}, time left {left}"


@contextmanager
def following(session: Session) -> Iterator[None]:
    """One updating line on a terminal while the run goes on; without one, or in CI, nothing at all."""
    if not for_people():
        yield
        return
    from tqdm import tqdm

    config = session.config
    counted = any(getattr(config, name) is not None for name in ("updates", "epochs", "examples"))
    total = planned_updates(config, len(session.parts.splits.train)) if counted else None
    shape = "{percentage:3.0f}%|{bar}| " if total else ""
    bar = tqdm(
        total=total, initial=session.update, file=sys.stderr, leave=False, mininterval=0, dynamic_ncols=True,
        bar_format=shape + "update {n_fmt}" + ("/{total_fmt}" if total else "") + "{postfix}",
    )  # fmt: skip
    line = Line(session, bar)
    session.watch = line
    try:
        yield
    finally:
        session.watch = None
        bar.close()
