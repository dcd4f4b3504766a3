"""Whether a checkpoint fits on the disk, asked before it is written. Lesson 05."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from labkit.checkpoint.plain import Plan
from labkit.errors import StorageError
from labkit.files import file_size_limit, free_bytes, storage_errors


@dataclass(frozen=True)
class Space:
    """Bytes: one checkpoint, all that retention will hold at once, what lies there already, what is free."""

    one: int
    retained: int
    present: int
    free: int

    @property
    def missing(self) -> int:
        """Bytes that are lacking for all that retention will hold; 0 when it fits."""
        return max(0, self.retained - self.present - self.free)


def need(plan: Plan) -> int:
    """Upper estimate of a checkpoint's bytes: data, and per tensor the archive's headers, alignment and its pickle."""
    return plan.nbytes + 1024 * plan.count + 1024 * 1024


def check_room(folder: Path, update: int, plan: Plan) -> int:
    """Bytes that one checkpoint needs. Raises StorageError, with the bytes that are missing, when it does not fit."""
    size, limit = need(plan), file_size_limit()
    with storage_errors(f"look at the free space of {folder}"):
        free = free_bytes(folder)
    if limit is not None and limit < size:
        raise StorageError(
            f"update {update} needs a file of {size} bytes, this process may write {limit}: {size - limit} missing",
            do="raise the file size limit (ulimit -f)",
        )
    if free < size:
        raise StorageError(
            f"update {update} needs {size} bytes in {folder} and {free} are free: {size - free} missing",
            do="free space on that disk, or choose another run folder",
        )
    return size
