"""What every check promises, in one place."""

from __future__ import annotations

import contextlib
import io
import time
from types import ModuleType

import torch

from labkit import lab
from labkit.lab.checks import Check, Verdict


def cases(page: ModuleType) -> list[tuple[str, str]]:
    """(exercise, misconception) of every known-wrong answer of a page."""
    return [(exercise, name) for exercise, wrong in page.WRONG.items() for name in wrong]


def right_holds(check: Check, answer: object) -> None:
    for seed in (0, 1, 2, 12345):
        begun = time.perf_counter()
        result = check(answer, seed=seed)
        assert result.verdict is Verdict.HOLDS, (seed, result)
        assert result.message and time.perf_counter() - begun < 10


def wrong_is_named(check: Check, answer: object, name: str) -> None:
    for seed in (0, 3):
        result = check(answer, seed=seed)
        assert result.verdict is Verdict.NOT_YET and result.name == name, (seed, result)
        assert result.expected and result.seen and result.try_next
    assert repr(check(answer, seed=3)) == repr(result), "the same answer must read the same twice"


def blank_and_crash(check: Check, returns: str = "function") -> None:
    assert check(lab.TODO).verdict is Verdict.NOT_ATTEMPTED
    if not check.wants_function:
        return
    assert check(lambda *args, **kwargs: lab.TODO).verdict is Verdict.NOT_ATTEMPTED

    def crashes(*args, **kwargs):
        return args[99]

    result = check(crashes)
    assert result.verdict is Verdict.ERROR and "return args[99]" in result.seen and "IndexError" in result.message, (
        result
    )


def silent(check: Check, answer: object, capfd) -> None:
    before = torch.get_rng_state()
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        check(answer)
    out, said = capfd.readouterr()
    assert (out, said, err.getvalue()) == ("", "", "") and torch.equal(before, torch.get_rng_state())
