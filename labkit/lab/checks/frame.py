"""How an exercise is checked: five verdicts, a misconception by its name, numbers computed. All lessons.

A check is pure: the same answer and seed give the same result, every random stream and torch setting is as before,
nothing is written to stderr. What the learner's code prints is kept and shown below the verdict.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import io
import linecache
import os
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
import torch

from labkit import randomness
from labkit.errors import ConfigError
from labkit.lab.checks import passed
from labkit.lab.checks.result import TODO, Result, Verdict

SEED_VARIABLE = "LABKIT_CHECK_SEED"
_WRITE_IT = "Write the cell above, run it, and run this check again."


class _Stop(Exception):
    """Ends a check with a verdict."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.name)
        self.result = result


def not_yet(
    name: str, message: str = "", *, expected: str, seen: str, smallest: str = "", try_next: str = ""
) -> NoReturn:
    """End the check: the answer is wrong in a way that has a name."""
    following = try_next or "Work the smallest failing input by hand and compare with what you see."
    raise _Stop(Result("", Verdict.NOT_YET, name, message, expected, seen, smallest, following))


def cannot(message: str, try_next: str = "") -> NoReturn:
    """End the check: this machine lacks what the check needs."""
    raise _Stop(Result("", Verdict.CANNOT, "", message, try_next=try_next))


def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run the learner's code: an exception becomes "error in your code" with its line, TODO becomes "not attempted"."""
    with theirs():
        value = function(*args, **kwargs)
    if value is TODO or getattr(value, "gen", None) is TODO:
        raise _Stop(Result("", Verdict.NOT_ATTEMPTED))
    return value


@contextlib.contextmanager
def theirs() -> Iterator[None]:
    """A block in which the learner's code runs: what it raises is the learner's error, not the check's."""
    try:
        yield
    except _Stop:
        raise
    except NotImplementedError as fault:
        if not str(fault):
            raise _Stop(Result("", Verdict.NOT_ATTEMPTED)) from fault
        raise _Stop(_error(fault)) from fault
    except Exception as fault:
        raise _Stop(_error(fault)) from fault


def _error(fault: Exception) -> Result:
    """The line of the learner's code in which the exception left it."""
    frames = [f for f in traceback.extract_tb(fault.__traceback__) if not _is_library(f.filename)]
    where = ""
    if frames:
        last = frames[-1]
        text = (last.line or linecache.getline(last.filename, last.lineno or 0)).strip()
        where = f"line {last.lineno}, in {last.name}: {text}"
    words = str(fault).strip().split("\n")[0][:300]
    return Result(
        "",
        Verdict.ERROR,
        "",
        f"{type(fault).__name__}: {words}",
        seen=where or "raised when the function was called",
        try_next="Read the line above with the values you expect in it, then print them.",
    )


def _is_library(filename: str) -> bool:
    here = os.path.dirname(os.path.abspath(__file__))
    return (
        "site-packages" in filename
        or filename.startswith(here)
        or filename.startswith("<frozen")
        or filename == contextlib.__file__
    )


@contextlib.contextmanager
def undisturbed() -> Iterator[io.StringIO]:
    """What a check could disturb is as before afterwards: random streams, gradient mode, threads, output, warnings."""
    recording, threads, dtype = torch.is_grad_enabled(), torch.get_num_threads(), torch.get_default_dtype()
    printed = io.StringIO()
    try:
        quiet = (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(printed),
        )
        with randomness.preserved(), quiet[0], quiet[1], quiet[2]:
            warnings.simplefilter("ignore")
            torch.set_grad_enabled(True)
            torch.set_num_threads(1)
            yield printed
    finally:
        torch.set_grad_enabled(recording)
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)


def is_blank(answer: Any) -> bool:
    """TODO, None, `...`, a table or list of nothing but those, or a function that does nothing but return None."""
    if isinstance(answer, (Mapping, list, tuple)):
        entries = list(answer.values() if isinstance(answer, Mapping) else answer)
        return bool(entries) and all(entry is TODO or entry is None or entry is ... for entry in entries)
    if answer is TODO or answer is None or answer is ...:
        return True
    code = getattr(inspect.unwrap(answer) if callable(answer) else answer, "__code__", None)
    if code is None:
        return False
    moves = [one for one in dis.get_instructions(code) if one.opname not in ("RESUME", "NOP", "RETURN_VALUE")]
    return len(moves) == 1 and moves[0].opname in ("LOAD_CONST", "RETURN_CONST") and moves[0].argval is None


@dataclass(eq=False)
class Check:
    """`check_x(answer) -> Result`.

    seed varies the hidden numbers; without it the instructor's variable LABKIT_CHECK_SEED is used, else 0.
    """

    exercise: str
    lesson: str
    minutes: int
    body: Callable[[Any, int], str]
    wants_function: bool = True
    store: bool = field(default=True, repr=False)

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.body)

    def __call__(self, answer: Any = TODO, *, seed: int | None = None) -> Result:
        variant = _seed(seed)
        result = replace(self._judged(answer, variant), exercise=self.exercise)
        if result.holds and self.store and seed is None and SEED_VARIABLE not in os.environ:
            passed.remember(self.lesson, self.exercise)
        return result

    def _judged(self, answer: Any, seed: int) -> Result:
        if is_blank(answer):
            return Result("", Verdict.NOT_ATTEMPTED, message=_WRITE_IT)
        if self.wants_function and not callable(answer):
            return Result(
                "",
                Verdict.NOT_YET,
                "not a function",
                "Hand over the function itself.",
                expected="a function",
                seen=repr(answer)[:100],
                try_next="Write its name without brackets.",
            )
        with undisturbed() as printed:
            try:
                result = Result("", Verdict.HOLDS, message=self.body(answer, seed))
            except _Stop as stop:
                result = stop.result
        if result.verdict is Verdict.NOT_ATTEMPTED and not result.message:
            result = replace(result, message=_WRITE_IT)
        return replace(result, printed="\n".join(printed.getvalue().split("\n")[:8]).strip()[:800])


def check(
    exercise: str, lesson: str, minutes: int, wants_function: bool = True
) -> Callable[[Callable[[Any, int], str]], Check]:
    """Make a Check of a function body(answer, seed) that returns what holds, or ends through not_yet or cannot."""

    def make(body: Callable[[Any, int], str]) -> Check:
        return Check(exercise, lesson, minutes, body, wants_function)

    return make


def _seed(given: int | None) -> int:
    if given is not None:
        return given
    text = os.environ.get(SEED_VARIABLE, "0")
    try:
        return int(text)
    except ValueError as fault:
        raise ConfigError(f"{SEED_VARIABLE}={text!r}", "a whole number") from fault


def number(value: Any, what: str) -> float:
    """The learner's number as a float; anything else ends the check by name."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value.detach())
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        return float(value)
    not_yet(
        "not a number",
        f"{what} should be a number.",
        expected="a number",
        seen=shown(value),
        try_next="Look at what your function returns; perhaps a return is missing.",
    )


def shown(value: Any) -> str:
    """A value in a few words that are the same on any machine."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = repr(value)
    return text if len(text) <= 80 and " at 0x" not in text else f"a value of type {type(value).__name__}"


def near(a: float, b: float, tolerance: float = 1e-6) -> bool:
    """Equal up to a part of the larger one; nan is near nothing."""
    return abs(a - b) <= tolerance * max(abs(a), abs(b), 1e-12)
