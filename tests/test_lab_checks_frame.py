"""Promises of the frame of all checks: five verdicts, nothing disturbed, progress kept locally."""

from __future__ import annotations

import json
import random
import sys
import warnings

import numpy as np
import pytest
import torch

from labkit import lab
from labkit.errors import ConfigError
from labkit.lab.checks import frame, passed, result
from labkit.lab.checks.result import Verdict


@frame.check("double", "99_example", minutes=5)
def check_double(answer, seed: int) -> str:
    n = 3 + seed
    got = frame.number(frame.call(answer, n), "what double returns")
    if got == n * n and got != 2 * n:
        frame.not_yet(
            "squares",
            "You multiplied by itself.",
            expected=str(2 * n),
            seen=frame.shown(got),
            smallest=f"double({n})",
            try_next="Try 0.5 by hand.",
        )
    if got != 2 * n:
        frame.not_yet("another number", expected=str(2 * n), seen=frame.shown(got))
    if seed == 99:
        frame.cannot("This needs a GPU.")
    return "Twice is twice."


def broken(n):
    m = n + 1
    return m / 0


def test_a_right_answer_holds_and_passes_grading():
    result = check_double(lambda n: 2 * n)
    assert result.verdict is Verdict.HOLDS and result.score == 1.0 and result.message == "Twice is twice."
    result.require()


def test_a_wrong_answer_is_named_with_expected_seen_smallest_and_next():
    result = check_double(lambda n: n * n)
    assert repr(result) == (
        "✗ double: not yet (squares)\n  You multiplied by itself.\n  expected: 6\n  seen: 9\n"
        "  smallest failing input: double(3)\n  try next: Try 0.5 by hand."
    )
    with pytest.raises(AssertionError, match="squares"):
        result.require()
    assert result.score == 0.0


def test_numbers_in_a_message_follow_the_instructors_seed(monkeypatch):
    assert check_double(lambda n: n * n, seed=4).expected == "14"
    monkeypatch.setenv("LABKIT_CHECK_SEED", "7")
    assert check_double(lambda n: n * n).expected == "20"
    monkeypatch.setenv("LABKIT_CHECK_SEED", "seven")
    with pytest.raises(ConfigError, match="LABKIT_CHECK_SEED"):
        check_double(lambda n: n * n)


def empty(n): ...


def documented(n):
    """Write this."""


def stub(n):
    return lab.TODO


def nbgraders(n):
    # YOUR CODE HERE
    raise NotImplementedError()


@pytest.mark.parametrize("answer", [lab.TODO, None, ..., empty, documented, stub, nbgraders])
def test_a_blank_is_not_attempted(answer):
    result = check_double(answer)
    assert result.verdict is Verdict.NOT_ATTEMPTED and result.message
    with pytest.raises(AssertionError, match="not attempted"):
        result.require()


def test_a_crash_is_an_error_in_your_code_with_its_line():
    result = check_double(broken)
    line = broken.__code__.co_firstlineno + 2
    assert result.verdict is Verdict.ERROR
    assert (
        result.message == "ZeroDivisionError: division by zero"
        and result.seen == f"line {line}, in broken: return m / 0"
    )


def test_a_wrong_number_of_arguments_is_an_error_in_your_code():
    assert check_double(lambda: 3).verdict is Verdict.ERROR


def test_a_fault_of_the_check_itself_is_not_blamed_on_the_learner():
    @frame.check("bad", "99_example", minutes=1)
    def check_bad(answer, seed: int) -> str:
        raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        check_bad(lambda n: n)


def test_what_is_not_a_function_or_a_number_is_said_so():
    assert check_double(3).name == "not a function"
    assert check_double(lambda n: "six").name == "not a number"


def test_cannot_check_here_is_a_verdict_of_its_own():
    assert check_double(lambda n: 2 * n, seed=99).verdict is Verdict.CANNOT


def test_a_check_is_silent_on_stderr_and_puts_back_everything_it_could_disturb(capfd):
    def noisy(n):
        print("n is", n)
        print("oops", file=sys.stderr)
        warnings.warn("careful", stacklevel=1)
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        torch.set_grad_enabled(False)
        return 2 * n

    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    threads = torch.get_num_threads()
    result = check_double(noisy)
    here = random.random(), np.random.rand(), torch.rand(1).item()
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    assert here == (random.random(), np.random.rand(), torch.rand(1).item())
    assert torch.is_grad_enabled() and torch.get_num_threads() == threads
    out, err = capfd.readouterr()
    assert (out, err) == ("", "") and result.holds and result.printed == "n is 3"


def test_the_same_answer_reads_the_same_twice_in_text_and_html():
    one, two = check_double(lambda n: n * n), check_double(lambda n: n * n)
    assert repr(one) == repr(two) and one._repr_html_() == two._repr_html_() and one == two
    assert "&lt;b&gt;" in result.Result("x", Verdict.NOT_YET, seen="<b>")._repr_html_()


def test_every_verdict_has_a_word_and_a_mark_besides_its_colour():
    for verdict in Verdict:
        assert verdict.value in repr(result.Result("x", verdict)) and verdict in result.MARK and verdict in result.COLOR


def test_a_passed_check_is_remembered_in_my_lessons_only_and_never_under_ci(tmp_path, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.chdir(tmp_path)
    check_double(lambda n: 2 * n)
    assert not list(tmp_path.iterdir())
    home = tmp_path / "my_lessons" / "deeper"
    home.mkdir(parents=True)
    monkeypatch.chdir(home)
    check_double(lambda n: n)
    monkeypatch.setenv("CI", "true")
    check_double(lambda n: 2 * n)
    monkeypatch.delenv("CI")
    assert passed.recorded(passed.store()) == {}
    check_double(lambda n: 2 * n)
    check_double(lambda n: 2 * n)
    assert json.loads((tmp_path / "my_lessons" / "passed.json").read_text()) == {"99_example": ["double"]}


def test_grading_leaves_no_trace_in_the_learners_progress(tmp_path, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    (tmp_path / "my_lessons").mkdir()
    monkeypatch.chdir(tmp_path / "my_lessons")
    check_double(lambda n: 2 * n, seed=3)
    assert not (tmp_path / "my_lessons" / "passed.json").exists()


def test_a_broken_progress_file_is_put_aside_not_overwritten(tmp_path, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    (tmp_path / "my_lessons").mkdir()
    monkeypatch.chdir(tmp_path / "my_lessons")
    (tmp_path / "my_lessons" / "passed.json").write_text("{torn")
    check_double(lambda n: 2 * n)
    assert passed.recorded(passed.store()) == {"99_example": ["double"]}
    assert (tmp_path / "my_lessons" / "passed.json.broken").read_text() == "{torn"


def test_the_table_of_progress_shows_open_and_passed(tmp_path, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    rows = [("99_example", "double", 5), ("99_example", "halve", 10)]
    monkeypatch.chdir(tmp_path)
    assert "○ open" in repr(passed.table(rows)) and "own copies only" in repr(passed.table(rows))
    (tmp_path / "my_lessons").mkdir()
    monkeypatch.chdir(tmp_path / "my_lessons")
    check_double(lambda n: 2 * n)
    table = passed.table(rows)
    assert table.rows[0][3] and not table.rows[1][3] and "1 of 2 passed" in table._repr_html_()


def test_every_exercise_has_its_own_name_a_lesson_minutes_and_a_written_contract():
    every = lab.checks.ALL
    assert len(every) >= 16 and len({one.exercise for one in every}) == len(every)
    assert all(one.minutes > 0 and one.lesson[:2].isdigit() and one.__doc__ for one in every)
    assert len(lab.my_progress().rows) == len(every)
