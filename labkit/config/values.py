"""One setting's value by the annotation of its field: read from text, or taken as it is. Lesson 04."""

from __future__ import annotations

import types
import typing
from typing import Any, Literal

from labkit.errors import ConfigError


def read(hint: Any, name: str, text: str) -> Any:
    """The value that a command line's `name=text` means for a field annotated with hint. Raises ConfigError."""
    kinds = _kinds(hint)
    if text.lower() in {"none", "null", ""} and type(None) in kinds:
        return None
    if tuple in kinds:
        return tuple(_number(name, part, int) for part in text.split(",") if part.strip())
    if bool in kinds:
        return parse_bool(name, text)
    for kind in (int, float):
        if kind in kinds:
            return _number(name, text, kind)
    return text


def parse_bool(name: str, text: str) -> bool:
    """true/false, yes/no, on/off, 1/0. Raises ConfigError."""
    if text.lower() in {"true", "yes", "on", "1"}:
        return True
    if text.lower() in {"false", "no", "off", "0"}:
        return False
    raise ConfigError(f"{name}={text!r}", "true or false", f"write {name}=true or {name}=false")


def _number(name: str, text: str, kind: type) -> int | float:
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{name}={text!r}", wanted, f"for example {name}=16") from None


def _kinds(hint: Any) -> set[Any]:
    """The set of plain types that an annotation admits; a Literal counts as the types of its values."""
    if typing.get_origin(hint) is Literal:
        return {type(value) for value in typing.get_args(hint)}
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return set().union(*(_kinds(part) for part in typing.get_args(hint)))
    return {typing.get_origin(hint) or hint}


def typed(hint: Any, name: str, value: Any) -> Any:
    """The value in the type that hint names. A bool is not taken for a number, nor a number for a text.

    Raises ConfigError for another type, and for what is none of a Literal's choices.
    """
    kinds = _kinds(hint)
    if value is None and type(None) in kinds:
        return None
    if tuple in kinds:
        parts = (value,) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(parts, (list, tuple)) or not all(type(part) is int for part in parts):
            raise ConfigError(f"{name}={value!r}", "a whole number or a tuple of them", f"for example {name}=(40, 24)")
        return tuple(parts)
    if float in kinds and type(value) is int:
        value = float(value)
    if type(value) not in kinds:
        wanted = " or ".join(sorted("nothing" if kind is type(None) else kind.__name__ for kind in kinds))
        raise ConfigError(f"{name}={value!r} is of type {type(value).__name__}", wanted, "correct the value")
    for part in (hint, *typing.get_args(hint)):
        if typing.get_origin(part) is Literal and value not in typing.get_args(part):
            choices = ", ".join(map(str, typing.get_args(part)))
            raise ConfigError(f"{name}={value!r}", f"one of {choices}", "choose one of them")
    return value
