"""One process per run folder, and the name of the one that holds it. Lesson 05."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from labkit.errors import RunFolderError, RunLockedError
from labkit.files.disk import storage_error, write_text_durably


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold a run folder for this process. Raises RunLockedError naming the holder, at once.

    The operating system frees the lock when its holder dies, so nobody has to delete a file; the note beside it
    (lock.holder) is only for people, and a note of a dead holder means nothing.
    """
    note = folder / "lock.holder"
    if not folder.is_dir():
        raise RunFolderError(f"{folder} is not a folder", "a run folder", "make it first")
    held = FileLock(folder / "lock")
    try:
        held.acquire(timeout=0)
    except Timeout as error:
        raise RunLockedError(
            f"another process holds {folder}: {_holder(note)}", "one process per run folder", "wait for it, or stop it"
        ) from error
    except OSError as error:
        raise storage_error(error, f"lock {folder}") from error
    try:
        about = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S%z")}
        write_text_durably(note, json.dumps(about) + "\n")
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # a note that stays behind means nothing without the lock
                note.unlink()
    finally:
        held.release()


def _holder(note: Path) -> str:
    try:
        about = json.loads(note.read_text())
        return f"process {about['pid']} on {about['host']} since {about['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "holder unknown, its note is not there yet"
