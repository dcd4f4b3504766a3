"""Digests of files, made while they are written and again from what lies on the disk. Lesson 05."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from typing import TypeVar

from labkit.files.disk import Files

Item = TypeVar("Item")
Result = TypeVar("Result")

PIECE = 16 * 1024 * 1024
"""Bytes per digest, so that several threads can check one file. By hand: `split -b 16M --filter=sha256sum state.pt`."""


class HashingWriter:
    """What torch.save writes to: joins small writes, and hashes large ones in a thread while they go to the disk.

    After the first failed write the rest is swallowed (torch turns an exception in a write into one of its own, and may
    write more while it cleans up); finish() then raises the first error. digests() holds one SHA-256 per PIECE bytes.
    """

    _JOIN = 1 << 20

    def __init__(self, files: Files, handle: FileIO) -> None:
        self.size = 0
        self.error: Exception | None = None
        self._files, self._handle = files, handle
        self._small = bytearray()
        self._hash = hashlib.sha256()
        self._done: list[str] = []
        self._pool = ThreadPoolExecutor(1, "labkit-hash")

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        if self.error is None:
            try:
                if len(view) < self._JOIN:
                    self._small += view
                if len(self._small) >= self._JOIN or len(view) >= self._JOIN:
                    self._flush_small()
                if len(view) >= self._JOIN:
                    self._put(view)
            except Exception as error:
                self.error = error
        return len(view)

    def flush(self) -> None:
        """torch calls this at the end; finish() does the work."""

    def finish(self) -> None:
        """Write what is left and raise the first error of any write."""
        try:
            if self.error is None:
                self._flush_small()
        finally:
            self._pool.shutdown()
        if self.error is not None:
            raise self.error

    def digests(self) -> list[str]:
        """SHA-256 of each piece, the last one shorter; an empty file has one."""
        return [*self._done, self._hash.hexdigest()] if self.size % PIECE or not self._done else list(self._done)

    def _flush_small(self) -> None:
        if self._small:
            self._put(memoryview(bytes(self._small)))
            self._small.clear()

    def _put(self, view: memoryview) -> None:
        try:
            hashing = self._pool.submit(self._update, view)
        except RuntimeError:  # the interpreter is shutting down and starts no more threads
            self._update(view)
            self._files.write(self._handle, view)
            return
        try:
            self._files.write(self._handle, view)
        finally:
            hashing.result()

    def _update(self, view: memoryview) -> None:
        while view:
            part = view[: min(PIECE - self.size % PIECE, 1 << 18)]
            self._hash.update(part)
            self.size += len(part)
            if self.size % PIECE == 0:
                self._done.append(self._hash.hexdigest())
                self._hash = hashlib.sha256()
            view = view[len(part) :]


def spread(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """[function(item) for item in items] by a few threads, for work that lets go of Python's lock: hashing, copying."""
    with ThreadPoolExecutor(max(1, min(4, os.cpu_count() or 1, len(items))), "labkit") as pool:
        try:
            futures = [pool.submit(function, item) for item in items]
        except RuntimeError:  # the interpreter is shutting down and starts no more threads
            return [function(item) for item in items]
        return [future.result() for future in futures]


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a whole file, as `sha256sum` prints it. Raises OSError as the disk gave it."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def file_digests(path: Path, size: int) -> list[str]:
    """SHA-256 of each PIECE of a file of `size` bytes, read from the disk by a few threads."""
    return spread(lambda start: _piece_digest(path, start), range(0, max(size, 1), PIECE))


def _piece_digest(path: Path, start: int) -> str:
    digest, left = hashlib.sha256(), PIECE
    buffer = memoryview(bytearray(1 << 18))  # small enough to stay in the processor's cache between read and hash
    with open(path, "rb", buffering=0) as handle:
        handle.seek(start)
        while left and (count := handle.readinto(buffer[:left])):
            digest.update(buffer[:count])
            left -= count
    return digest.hexdigest()
