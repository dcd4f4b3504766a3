"""The checks of lesson 04 hold for the right answers and name every known-wrong one."""

from __future__ import annotations

import pytest
from answers import checkpointing as page
from answers import promises

from labkit.lab.checks import checkpointing as checks

CHECKS = {"which_piece": checks.check_which_piece, "restore": checks.check_restore}


@pytest.mark.parametrize("exercise", CHECKS)
def test_right_answer_holds_for_every_hidden_variant(exercise):
    promises.right_holds(CHECKS[exercise], page.RIGHT[exercise])


@pytest.mark.parametrize(("exercise", "name"), promises.cases(page))
def test_wrong_answer_is_named(exercise, name):
    promises.wrong_is_named(CHECKS[exercise], page.WRONG[exercise][name], name)


@pytest.mark.parametrize("exercise", CHECKS)
def test_blank_is_not_attempted_and_a_crash_shows_its_line(exercise):
    promises.blank_and_crash(CHECKS[exercise])


@pytest.mark.parametrize("exercise", CHECKS)
def test_check_is_silent_and_leaves_no_trace(exercise, capfd):
    promises.silent(CHECKS[exercise], page.RIGHT[exercise], capfd)


@pytest.mark.parametrize(("exercise", "name"), page.ALSO)
def test_other_ways_to_the_same_mistake_get_the_same_name(exercise, name):
    for answer in page.ALSO[exercise, name]:
        promises.wrong_is_named(CHECKS[exercise], answer, name)


def test_a_function_may_answer_in_place_of_the_table_and_is_tried_on_hidden_puzzles():
    promises.right_holds(checks.check_which_piece, page.which_piece)


def test_the_puzzles_read_the_same_twice_and_hold_no_measured_loss():
    first, second = checks.puzzles(), checks.puzzles()
    assert [repr(p) for p in first.values()] == [repr(p) for p in second.values()] and list(first) == list("ABCDEF")
    assert first["A"]._repr_html_() == second["A"]._repr_html_()


def test_each_lost_piece_shows_first_where_the_lesson_says_it_does():
    first = {
        page.lost[letter]: next(row[0] for row in p.rows() if "≠" in row) for letter, p in checks.puzzles().items()
    }
    assert first == {
        "cursor": "indices",
        "schedule": "rate",
        "generator": "loss",
        "optimizer": "loss",
        "buffers": "evaluated",
        "average": "evaluated average",
    }
    optimizer = next(p for letter, p in checks.puzzles().items() if page.lost[letter] == "optimizer")
    loss = next(row for row in optimizer.rows() if row[0] == "loss")
    assert loss[1] == "=" and loss[2] == "≠", "with the optimizer lost the first loss is equal, the second is not"
