"""The end of a record file: cut it back to an attempt, keep what was cut; read the last record. Lessons 04 and 10."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labkit.files import storage_errors
from labkit.records.lines import _BLOCK, keep_cut, parse
from labkit.records.values import revive


def truncate_after(
    path: Path | str, attempt: int, cut_folder: Path | str | None = None, *, evaluated: bool = True
) -> int:  # fmt: skip
    """Cut every line behind the last one whose "attempt" is at most `attempt`; return how many lines were cut.

    evaluated=False: an evaluation recorded after that very attempt goes too, since the restored state owes it still.

    The cut bytes, a torn last line included, are on disk in `cut_folder` (default: cut/ beside the file) before the
    file shrinks, so a crash in between loses nothing. Lines without an attempt stay with the line before them. Only
    the tail is read: the cost is that of what is cut, not of the file. A missing file has nothing to cut.
    Raises RecordsError for a file that is not ours, StorageError when the disk refuses.
    """
    path = Path(path)
    if not path.exists():
        return 0
    offset, cut = _first_after(path, attempt, evaluated)
    if not cut:
        return 0
    with storage_errors(f"cut {path}"), open(path, "r+b") as file:
        file.seek(offset)
        keep_cut(Path(cut_folder) if cut_folder is not None else path.parent / "cut", path, file.read())
        file.truncate(offset)
        os.fsync(file.fileno())
    return cut


def _first_after(path: Path, attempt: int, evaluated: bool) -> tuple[int, int]:
    """Offset of the first line to cut, and the number of lines from there on, found from the end backwards."""
    end = path.stat().st_size
    offset, cut, since = end, 0, 0
    for start, line in _backwards(path):
        since += 1
        record = parse(path, 0, line, last=start + len(line) == end and not line.endswith(b"\n"))
        if record is None:
            offset, cut = start, since
            continue
        found = record.get("attempt")
        if not isinstance(found, int):
            continue
        owed = found == attempt and not evaluated and "validation" in record
        if found <= attempt and not owed:
            break
        offset, cut = start, since
    return offset, cut


def _backwards(path: Path) -> Iterator[tuple[int, bytes]]:
    """(offset, line with its newline) from the last line to the first, reading blocks from the end."""
    with open(path, "rb") as file:
        position, rest = file.seek(0, os.SEEK_END), b""
        while position > 0:
            start = max(0, position - _BLOCK)
            file.seek(start)
            data = file.read(position - start) + rest
            pieces = _split(data)
            first = 0 if start == 0 else 1  # the first piece may lack its beginning
            offset = start + len(data)
            for piece in reversed(pieces[first:]):
                offset -= len(piece)
                yield offset, piece
            rest, position = (pieces[0] if first and pieces else b""), start


def _split(data: bytes) -> list[bytes]:
    """Split behind newlines, and at nothing else."""
    pieces = [piece + b"\n" for piece in data.split(b"\n")]
    pieces[-1] = pieces[-1][:-1]
    return pieces if pieces[-1] else pieces[:-1]


def last_record(path: Path | str) -> dict[str, Any] | None:
    """The last whole record, read from the end of the file without reading the rest; None when there is none."""
    path = Path(path)
    if not path.exists():
        return None
    end = path.stat().st_size
    for start, line in _backwards(path):
        record = parse(path, 0, line, last=start + len(line) == end and not line.endswith(b"\n"))
        if record is not None:
            revived = revive(record)
            assert isinstance(revived, dict)
            return revived
    return None
