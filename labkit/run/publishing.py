"""When a checkpoint is due, and what happens when the disk refuses one. Lesson 05."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from labkit.checkpoint import BackgroundSaver, CheckpointStore
from labkit.config import RunConfig
from labkit.errors import StorageError
from labkit.interrupt import Wishes
from labkit.run.goals import Ending
from labkit.state import RunState


class Publisher:
    """Publishes states into a store, in the foreground or behind it, and knows which boundary was saved last.

    failed is called with every StorageError, whether or not it is raised: a failed save leaves the run alive.
    """

    def __init__(
        self, store: CheckpointStore, background: bool, saved_attempt: int | None, saved_update: int | None,
        pinned: int | None, failed: Callable[[StorageError], None],
    ) -> None:  # fmt: skip
        self.store = store
        self.saved_attempt = saved_attempt  # attempts made when the newest checkpoint was taken
        self.saved_update = saved_update
        self.pinned = pinned  # the checkpoint before the last incident, for replay
        self._saver = BackgroundSaver(store) if background else None
        self._saved_at = time.monotonic()
        self._failed = failed

    def reason(self, state: RunState, config: RunConfig, wishes: Wishes, ending: Ending | None) -> str | None:
        """Why this boundary is to be saved, or None. A wish is granted once."""
        counters = state.counters
        if wishes.save:
            wishes.save = False
            return "best" if state.best.update == counters.committed and counters.evaluations else "asked"
        if counters.attempted == self.saved_attempt:
            return None
        if ending is not None:
            return "signal" if wishes.by_signal else ending.status
        if config.save_every and counters.committed and counters.committed % config.save_every == 0:
            return "periodic"
        if config.save_epoch_end and state.cursor.examples == 0:
            return "epoch end"
        if config.save_seconds is not None and time.monotonic() - self._saved_at >= config.save_seconds:
            return "time"
        return None

    def publish(self, state: RunState, facts: Mapping[str, Any], *, required: bool, wait: bool = False) -> None:
        """Save the present boundary. A StorageError is raised only if the save is required; wait: in the foreground."""
        update = state.counters.committed
        try:
            if self._saver is not None and not wait:
                self.finish(state.best.update, wait=True)  # an earlier one that failed does not take this one along
                self._saver.submit(update, state.capture(), facts)
            else:
                self.store.publish(update, state.capture(), facts)
                self.store.retain(state.best.update, self.pinned)
        except StorageError as error:
            self._refused(error)
            if required:
                raise
            return
        self.saved_attempt, self.saved_update = state.counters.attempted, update
        self._saved_at = time.monotonic()

    def pin(self) -> int | None:
        """Keep the newest checkpoint until the next pin; its update."""
        self.pinned = self.saved_update
        return self.pinned

    def finish(self, best: int | None, *, wait: bool, required: bool = False) -> None:
        """Clear old checkpoints after a background save. The StorageError of one is raised only if it was required."""
        if self._saver is None:
            return
        try:
            done = self._saver.wait() if wait else self._saver.check()
        except StorageError as error:
            self._refused(error)
            if required:
                raise
            return
        if done is not None:
            self.store.retain(best, self.pinned)

    def close(self) -> None:
        """Wait for a save that is under way."""
        if self._saver is not None:
            self._saver.close()

    def _refused(self, error: StorageError) -> None:
        self.saved_attempt, self._saved_at = None, time.monotonic()
        self._failed(error)
