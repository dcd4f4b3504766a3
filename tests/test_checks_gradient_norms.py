"""The checks of lesson 07 hold for the right answers and name every known-wrong one."""

from __future__ import annotations

import pytest
from answers import gradient_norms as page
from answers import promises

from labkit.lab.checks import gradient_norms as checks

CHECKS = {"clip": checks.check_clip, "guarded_update": checks.check_guarded_update}


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
