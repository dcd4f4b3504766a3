"""Files of JSON lines: append quickly, read what a crash left, cut a tail and keep it. Lesson 10."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import RecordsError
from labkit.files import DISK, Files, storage_error, storage_errors, write_file
from labkit.records.values import FORMAT, encode, revive

_BLOCK = 1 << 16


class LineLog:
    """Append records to a file, one JSON object a line.

    Lines are buffered and written about once a second, at `flush`, and at `close`; there is one writer per file. A
    torn last line that an earlier process left is moved to `cut/` beside the file and kept in `torn` (its bytes).
    """

    def __init__(self, path: Path | str, every_seconds: float = 1.0, files: Files = DISK) -> None:
        self.path, self._files = Path(path), files
        self._every, self._due, self._buffer = every_seconds, math.inf, list[str]()
        self._named = False  # whether the file's name is known to be on disk
        with storage_errors(f"open {self.path}"):
            self._handle = files.open_append(self.path)
        try:
            with storage_errors(f"mend {self.path}"):
                self.torn = self._repair()
        except BaseException:
            self._handle.close()
            raise

    def append(self, record: Mapping[str, Any]) -> None:
        """Buffer one record. It is encoded at once, so changing it later changes nothing here."""
        if self._handle.closed:
            raise RecordsError(f"{self.path.name} was closed", "an open record file", "open a new LineLog")
        self._buffer.append(encode(record))
        now = time.monotonic()
        if self._due == math.inf:
            self._due = now + self._every
        elif now >= self._due:
            self.flush()

    def flush(self, durable: bool = False) -> None:
        """Hand every buffered line to the system; durable: and wait until it is on disk.

        Raises StorageError when the disk refuses; the lines stay buffered and the file keeps whole lines only.
        """
        try:
            if self._buffer:
                self._write("\n".join(self._buffer).encode("ascii") + b"\n")
                self._buffer.clear()
            self._due = math.inf
            if durable:
                self._files.fsync(self._handle)
                if not self._named:
                    self._files.fsync_folder(self.path.parent)
                    self._named = True
        except OSError as error:
            self._due = time.monotonic() + self._every
            raise storage_error(error, f"write {self.path}") from error

    def close(self) -> None:
        """Flush and close; closing twice is fine. The file is closed even when the last flush fails."""
        if self._handle.closed:
            return
        try:
            self.flush(durable=True)
        finally:
            self._files.close(self._handle)

    def __enter__(self) -> LineLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, data: bytes) -> None:
        size = os.fstat(self._handle.fileno()).st_size
        try:
            self._files.write(self._handle, data)
        except OSError:
            self._handle.truncate(size)  # half a line would swallow the next one
            raise

    def _repair(self) -> bytes | None:
        tail = _unfinished_tail(self.path)
        if not tail:
            return None
        if _is_record(tail):  # whole but for its newline
            self._write(b"\n")
            return None
        keep_cut(self.path.parent / "cut", self.path, tail, self._files)
        self._handle.truncate(os.fstat(self._handle.fileno()).st_size - len(tail))
        return tail


def _unfinished_tail(path: Path) -> bytes:
    """The bytes behind the last newline, which a complete file does not have."""
    with open(path, "rb") as file:
        position, tail = file.seek(0, os.SEEK_END), b""
        while position > 0 and b"\n" not in tail:
            start = max(0, position - _BLOCK)
            file.seek(start)
            tail = file.read(position - start) + tail
            position = start
    return tail[tail.rfind(b"\n") + 1 :]


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def keep_cut(folder: Path, path: Path, data: bytes, files: Files = DISK) -> Path:
    """Write bytes that are about to be cut under the next free number in `folder`, durably. Raises OSError."""
    if not folder.is_dir():
        files.mkdir(folder)
        files.fsync_folder(folder.parent)
    number = 1
    while (target := folder / f"{path.stem}-{number:04d}{path.suffix}").exists():
        number += 1
    write_file(target, data, files)
    files.fsync_folder(folder)
    return target


@dataclass(frozen=True)
class Lines:
    """What a record file holds: `records` in order, and whether the last line was torn (and therefore left out)."""

    records: list[dict[str, Any]]
    torn: bool

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


def read_lines(path: Path | str, text_fields: Collection[str] = ()) -> Lines:
    """Read a whole record file; a missing file holds no records.

    text_fields name top-level fields that are text, in which "nan" is a word and not a number. Raises RecordsError for
    a file that is not ours, a damaged line before the last, or an entry that a newer labkit wrote.
    """
    path = Path(path)
    records, torn = list[dict[str, Any]](), False
    for number, line, last in numbered(path):
        record = parse(path, number, line, last)
        if record is None:
            torn = True
            continue
        if b'"nan"' in line or b'inf"' in line:
            record = {name: entry if name in text_fields else revive(entry) for name, entry in record.items()}
        records.append(record)
    return Lines(records, torn)


def numbered(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """(line number from 1, line, whether it is the unfinished last one), reading the file once."""
    try:
        file = open(path, "rb")
    except FileNotFoundError:
        return
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RecordsError(f"{path} cannot be read: {reason}", "a readable file") from error
    with file:
        for number, line in enumerate(file, 1):
            yield number, line, not line.endswith(b"\n")


def parse(path: Path, number: int, line: bytes, last: bool) -> dict[str, Any] | None:
    """The record in one line; None for a torn last one. A power cut can leave zero bytes where a line should be."""
    try:
        record = json.loads(line)
    except ValueError as error:
        if last:
            return None
        raise _not_ours(path, number) from error
    if not isinstance(record, dict):
        raise _not_ours(path, number)
    if isinstance(version := record.get("format"), int) and version > FORMAT:
        raise RecordsError(
            f"{_where(path, number)} has format {version}",
            f"format {FORMAT} or older",
            "read it with the labkit that wrote it, or a newer one; nothing was changed",
        )
    return record


def _not_ours(path: Path, number: int) -> RecordsError:
    return RecordsError(
        f"{_where(path, number)} is not a record",
        "one JSON object a line",
        "move the file aside if another program wrote it; if the disk damaged it, cut that line out",
    )


def _where(path: Path, number: int) -> str:
    return f"{path}, line {number}," if number else f"a line near the end of {path}"  # read backwards: not counted
