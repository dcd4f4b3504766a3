"""The check of lesson 00 holds for the right answer and names every known-wrong one."""

from __future__ import annotations

import pytest
from answers import promises
from answers import start_here as page

from labkit.lab.checks.start_here import check_first_difference


def test_right_answer_holds_for_every_hidden_variant():
    promises.right_holds(check_first_difference, page.RIGHT["first_difference"])


@pytest.mark.parametrize(("exercise", "name"), promises.cases(page))
def test_wrong_answer_is_named(exercise, name):
    promises.wrong_is_named(check_first_difference, page.WRONG[exercise][name], name)


@pytest.mark.parametrize("name", page.MORE)
def test_another_way_to_the_same_misconception_is_named(name):
    promises.wrong_is_named(check_first_difference, page.MORE[name], name)


def test_blank_is_not_attempted_and_a_crash_shows_its_line():
    promises.blank_and_crash(check_first_difference)


def test_check_is_silent_and_leaves_no_trace(capfd):
    promises.silent(check_first_difference, page.RIGHT["first_difference"], capfd)
