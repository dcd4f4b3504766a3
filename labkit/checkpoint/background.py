"""Save while training goes on: copy everything first, then write the copy in a thread. Lesson 05."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Mapping
from typing import Any

from labkit.checkpoint.plain import plain, plain_json
from labkit.checkpoint.store import CheckpointStore, Published


class BackgroundSaver:
    """Publishes snapshots of a live state, one at a time. A kill loses at most the one in flight.

    The thread is not a daemon: an interpreter that ends waits for it. Same bytes as CheckpointStore.publish.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._published: Published | None = None

    @property
    def busy(self) -> bool:
        """True while a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def submit(self, update: int, payload: Mapping[str, Any], facts: Mapping[str, Any]) -> Published | None:
        """Copy payload and facts, then return while they are written; waits first when one is still in flight.

        Returns the earlier checkpoint if it was not yet reported. Raises the earlier one's error, and CheckpointError
        for content that cannot be saved; then nothing was started.
        """
        earlier = self.wait()
        state, known = plain(payload, copy=True), plain_json(facts)
        self._thread = threading.Thread(target=self._save, args=(update, state, known), name="labkit-save")
        atexit.unregister(self._confess)  # once, however often one saves
        atexit.register(self._confess)
        self._thread.start()
        return earlier

    def check(self) -> Published | None:
        """A checkpoint finished since the last call, else None. Raises the error of one that failed. Never waits."""
        if self.busy:
            return None
        return self.wait()

    def wait(self) -> Published | None:
        """Wait for the one in flight; then as check()."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        published, self._published = self._published, None
        if error is not None:
            raise error
        return published

    def close(self) -> Published | None:
        """Wait for the one in flight and report it, as check() would. More may be submitted afterwards."""
        try:
            return self.wait()
        finally:
            atexit.unregister(self._confess)

    def __enter__(self) -> BackgroundSaver:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _save(self, update: int, state: dict[str, Any], facts: dict[str, Any]) -> None:
        try:
            self._published = self._store.publish_plain(update, state, facts)
        except BaseException as error:  # carried to the training thread, which raises it at its next boundary
            self._error = error

    def _confess(self) -> None:
        """The program is over and nobody asked: say it on stderr. Runs after every thread has ended."""
        if self._error is not None:
            print(f"labkit: a background save failed: {type(self._error).__name__}: {self._error}", file=sys.stderr)
