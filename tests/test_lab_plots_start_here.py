"""Lesson 00: what its picture and sentence say, and that the processes behind them are really fresh ones."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labkit import lab
from labkit.errors import ProofError
from labkit.lab import fresh
from labkit.lab.plots.start_here import FirstResume, first_resume, first_resume_sentence
from labkit.proof import compare
from labkit.proof.rehearse import Rehearsal
from labkit.recipe import resolve
from labkit.recipes import find

SETTINGS = {"network": "conv", "rate": 0.01, "seed": 1}


def example(log_equal: list[bool], weights_equal: list[bool]) -> FirstResume:
    """Six updates, 5 to 10, stopped after 7; the resumed run is four times as high after the stop."""
    straight = np.full(6, 0.5)
    return FirstResume(
        7, "optimizer", np.arange(5, 11), straight, straight * [1, 1, 1, 4, 4, 4], straight, straight + 0.25,
        np.array(log_equal), np.array(weights_equal),
    )  # fmt: skip


LATE = example([True] * 4 + [False] * 2, [True] * 3 + [False] * 3)


def test_sentence_names_the_quiet_update_and_the_first_that_logs_another_loss():
    assert first_resume_sentence(LATE) == (
        "Stopped after 7, optimizer lost: update 8 logs equal numbers, update 9 is the first to log others "
        "(loss 0.5 against 0.75). On the fixed images the loss of the next 10 updates is 4 times as high."
    )
    assert first_resume_sentence(LATE, values=False).endswith("update 9 is the first to log others.")
    at_once = example([True] * 3 + [False] * 3, [True] * 3 + [False] * 3)
    assert "lost: update 8 is the first" in first_resume_sentence(at_once)
    same = replace(example([True] * 6, [True] * 6), lost="nothing")
    assert first_resume_sentence(same) == (
        "Stopped after 7, nothing lost: every update to 10 is equal to the uninterrupted run, in every recorded bit."
    )


def test_squares_are_filled_where_bits_are_equal_and_the_guess_is_marked():
    figure = first_resume(replace(LATE, guess=8))
    loss, squares = figure.axes
    counts = [len(group.get_offsets()) for group in squares.collections]
    assert counts == [4, 2, 3, 3]  # log filled, log hollow, weights filled, weights hollow
    assert "your guess" in [text.get_text() for text in loss.get_legend().get_texts()]
    assert [text.get_text() for text in loss.get_legend().get_texts()][0] == "uninterrupted"
    assert figure.alt == first_resume_sentence(LATE)


@pytest.fixture(scope="module")
def three_runs(tmp_path_factory: pytest.TempPathFactory) -> list[fresh.Followed]:
    folder = tmp_path_factory.mktemp("runs")
    straight = fresh.train("digits", folder / "straight", updates=12, **SETTINGS)
    stopped = fresh.train("digits", folder / "stopped", updates=8, **SETTINGS)
    return [straight, *fresh.continued(stopped.folder, 12, {"whole": [], "without": ["optimizer"]})]


def test_runs_go_on_in_processes_of_their_own_with_and_without_a_piece(three_runs):
    straight, whole, without = three_runs
    assert len({straight.process, whole.process, without.process, os.getpid()}) == 3
    assert compare(straight.folder, whole.folder).equal
    difference = compare(straight.folder, without.folder).difference
    assert (difference.update, difference.quantity) == (10, "loss_sum")
    assert "pieces lost on purpose" in (without.folder / "attempts.jsonl").read_text()
    assert "pieces lost on purpose" not in (whole.folder / "attempts.jsonl").read_text()


def test_a_rehearsal_in_memory_gives_the_picture_of_the_fresh_processes(three_runs):
    straight, whole, without = three_runs
    recipe = find("digits")
    rehearsal = Rehearsal(recipe, resolve(recipe, "digits", SETTINGS), attempts=12, stops=[8], seeds=0)
    for run, lost in ((whole, "nothing"), (without, "optimizer")):
        real = fresh.side_by_side(straight, run, lost, first=3)
        told = fresh.rehearsed(rehearsal, 8, lost, first=3)
        for name in (
            "updates",
            "straight",
            "resumed",
            "straight_logged",
            "resumed_logged",
            "log_equal",
            "weights_equal",
        ):
            assert np.array_equal(getattr(real, name), getattr(told, name)), name
    assert (
        real.weights_equal.tolist() == [True] * 6 + [False] * 4 and real.log_equal.tolist() == [True] * 7 + [False] * 3
    )


def test_a_process_that_fails_says_why(tmp_path: Path):
    stopped = fresh.train("digits", tmp_path / "stopped", updates=1, **SETTINGS)
    with pytest.raises(ProofError, match="no piece called 'weather'"):
        fresh.continued(stopped.folder, 2, {"odd": ["weather"]})
    with pytest.raises(ProofError, match="keeps no average"):
        fresh.continued(stopped.folder, 2, {"none": ["average"]})


def test_the_widget_of_lesson_00_answers_to_its_controls():
    other = replace(LATE, lost="nothing", log_equal=np.ones(6, dtype=bool), weights_equal=np.ones(6, dtype=bool))
    shown = {"optimizer": LATE, "nothing": other}
    widget = lab.Explorer(
        {"lost": lab.choice("Lost", list(shown), "optimizer")},
        draw=lambda lost: first_resume(shown[lost]), tell=lambda lost: first_resume_sentence(shown[lost]),
    )  # fmt: skip
    before, said = bytes(widget.image.value), widget.sentence.value
    widget.controls["lost"].value = "nothing"
    assert bytes(widget.image.value) != before and widget.sentence.value != said
    assert "description" in widget.image.get_state()  # without it the browser fails at the tooltip and shows no picture
