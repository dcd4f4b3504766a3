"""Record files as numpy columns, a million attempts in seconds. Lesson 10."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from labkit.records.lines import numbered, parse
from labkit.records.values import NONFINITE

_CHUNK = 4_000


def columns(
    path: Path | str, fields: Collection[str] | None = None, having: str | None = None
) -> dict[str, np.ndarray]:
    """Read a record file into one array per field, all of the same length.

    `fields` keeps only those top-level ones; `having` keeps only the lines that have that field: in a trajectory
    having="loss_sum" gives the attempts, having="validation" the evaluations.

    Whole numbers are int64, others float64 (null and missing: nan), flags bool, text object arrays (missing: None).
    Lists and mappings are spread: rates_used gives "rates_used.0", "rates_used.1"; validation gives
    "validation.loss.0" (the sum) and "validation.loss.1" (the count). A field may begin late or stay away in places.
    Damage is treated as in `read_lines`.
    """
    path, parts, lengths, lines, first = Path(path), list[dict[str, np.ndarray]](), list[int](), list[bytes](), 1
    for number, line, last in numbered(path):
        if last and parse(path, number, line, last) is None:
            break
        lines.append(line)
        if len(lines) == _CHUNK:
            _add(path, lines, first, fields, having, parts, lengths)
            lines, first = [], number + 1
    if lines:
        _add(path, lines, first, fields, having, parts, lengths)
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _join([part.get(name) for part in parts], lengths) for name in names}


def _add(
    path: Path, lines: list[bytes], first: int, fields: Collection[str] | None, having: str | None,
    parts: list[dict[str, np.ndarray]], lengths: list[int],
) -> None:  # fmt: skip
    try:
        records = json.loads(b"[" + b",".join(lines) + b"]")  # one call for the chunk: twice as fast as one a line
        whole = len(records) == len(lines) and all(type(entry) is dict and "format" not in entry for entry in records)
    except ValueError:
        whole = False
    if not whole:
        maybe = (parse(path, number, line, False) for number, line in enumerate(lines, first))
        records = [record for record in maybe if record is not None]
    if having is not None:
        records = [record for record in records if having in record]
    out: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(name for record in records for name in record):
        if fields is None or name in fields:
            _spread(name, [record.get(name) for record in records], out)
    parts.append(out)
    lengths.append(len(records))


def _spread(name: str, values: list[Any], out: dict[str, np.ndarray]) -> None:
    kinds = set(map(type, values))
    if not kinds & {list, dict}:
        out[name] = _column(values, kinds)
        return
    keys: dict[Any, None] = {}
    for value in values:
        if type(value) is dict:
            keys.update(dict.fromkeys(value))
        elif type(value) is list:
            keys.update(dict.fromkeys(range(len(value))))
    for key in keys:
        _spread(f"{name}.{key}", [_entry(value, key) for value in values], out)


def _entry(value: Any, key: Any) -> Any:
    if type(value) is list:
        return value[key] if type(key) is int and key < len(value) else None
    return value.get(key) if type(value) is dict else None


def _column(values: list[Any], kinds: set[type]) -> np.ndarray:
    if kinds <= {int} or kinds <= {bool}:
        try:
            return np.array(values, dtype=np.int64 if kinds <= {int} else np.bool_)
        except OverflowError:  # a whole number beyond 64 bits stays exact as an object
            return np.array(values, dtype=object)
    if str in kinds and {value for value in values if type(value) is str} <= NONFINITE.keys():
        values = [NONFINITE[value] if type(value) is str else value for value in values]
        kinds = (kinds - {str}) | {float}
    if kinds <= {int, float, type(None)}:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _join(pieces: list[np.ndarray | None], lengths: list[int]) -> np.ndarray:
    """Concatenate chunks of one column; where a chunk lacks it, or holds nothing else, it is missing there."""
    given = [piece for piece in pieces if piece is not None]
    kinds = {piece.dtype.kind for piece in given if not _blank(piece)}
    missing = any(piece is None or _blank(piece) for piece in pieces)
    if kinds <= {"i"} and not missing or kinds == {"b"} and not missing:
        return np.concatenate(given)
    if kinds <= {"i", "f"}:
        filled = [np.full(n, np.nan) if piece is None else piece for piece, n in zip(pieces, lengths, strict=True)]
        return np.concatenate([piece.astype(np.float64) for piece in filled])
    return np.concatenate(
        [
            np.full(n, None, dtype=object) if piece is None or _blank(piece) else piece.astype(object)
            for piece, n in zip(pieces, lengths, strict=True)
        ]
    )


def _blank(piece: np.ndarray) -> bool:
    return piece.dtype.kind == "f" and bool(np.isnan(piece).all())
