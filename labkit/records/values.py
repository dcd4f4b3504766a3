"""What a record line may hold, and how numbers that are not finite travel in it. Lesson 10."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from labkit.errors import RecordsError

FORMAT = 1
"""Version of the record files. Entries that carry a "format" above it are refused: a newer labkit wrote them."""

NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def plain(value: Any) -> Any:
    """Turn what json does not know (mappings, numpy scalars, paths, sets) into what it does; TypeError for the rest."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"a {type(value).__name__} is not a plain value")


_encode: Callable[[Any], str] = json.JSONEncoder(
    allow_nan=False, check_circular=False, separators=(",", ":"), default=plain
).encode


def encode(record: Mapping[str, Any]) -> str:
    """One line of JSON without its newline; nonfinite floats become the strings "nan", "inf", "-inf".

    Raises RecordsError for a value that is not plain (a tensor, an object): records hold numbers and names only.
    """
    try:
        return _encode(record)
    except ValueError:  # a nonfinite float: rare, so only now is every value looked at
        return _encode(spell_nonfinite(record))
    except TypeError as error:
        found = f"a record with the fields {', '.join(map(str, record))} cannot be written: {error}"
        raise RecordsError(found, "numbers, text, None, lists and mappings", "pass .item() or .tolist()") from error


def spell_nonfinite(value: Any) -> Any:
    """The value with nonfinite floats as the words "nan", "inf", "-inf", at any depth: JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, (str, int, float)) or value is None:
        return value
    if isinstance(value, Mapping):
        return {name: spell_nonfinite(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [spell_nonfinite(entry) for entry in value]
    return spell_nonfinite(plain(value))


def revive(value: Any) -> Any:
    """The inverse of writing: "nan", "inf" and "-inf" become floats again, at any depth."""
    if type(value) is str:
        return NONFINITE.get(value, value)
    if type(value) is list:
        return [revive(entry) for entry in value]
    if type(value) is dict:
        return {name: revive(entry) for name, entry in value.items()}
    return value
