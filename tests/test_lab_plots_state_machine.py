"""Lesson 01: the two loops side by side, and one update move by move."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labkit.lab import plots
from labkit.lab.magnify import BEFORE, MOVES, OPTIMIZERS, magnify
from labkit.lab.plots.state_machine import ClearPlot, clear_plot, clear_sentence

PAIR = ClearPlot(("SGD", "AdamW"), np.array([[0.5, 0.6], [0.2, 0.2]]), np.array([[0.1, 0.1], [0.1, 0.3]]), "worse")


def test_the_better_loop_is_counted_seed_by_seed():
    assert clear_sentence(PAIR).endswith("lower test loss. SGD: 2 of 2; AdamW: 1 of 2.")


def test_every_seed_is_one_mark_in_its_row_and_the_guess_is_written():
    figure = clear_plot(PAIR)
    cleared, never = figure.axes[0].collections
    assert cleared.get_offsets()[:, 0].tolist() == [0.5, 0.6, 0.2, 0.2]
    assert never.get_offsets()[:, 0].tolist() == [0.1, 0.1, 0.1, 0.3]
    rows = np.round(never.get_offsets()[:, 1]).tolist()
    assert rows == [1, 1, 0, 0] and figure.axes[0].texts[0].get_text().endswith("worse")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_move_touches_what_the_lesson_says_and_nothing_else(optimizer):
    seen = {move: data for move, data in zip(MOVES, magnify(optimizer), strict=True)}
    memory = {"first moment", "second moment"} if optimizer == "AdamW" else {"momentum"}
    due = {"forward": {"BatchNorm statistics"}, "optimizer": {"weights"} | memory, "schedule": set()}
    for move, data in seen.items():
        touched = {part for part, far in zip(data.parts, data.distance[data.shown], strict=True) if far > 0}
        assert touched == due.get(move, {"gradient buffer"}), move
    assert seen["clear"].after[0, 1] == 0.0 and seen["schedule"].moved_on and not seen["optimizer"].moved_on
    assert (seen["clear"].used, seen["clear"].following) == (BEFORE, BEFORE + 1)


def test_without_the_clear_the_gradient_of_the_update_before_is_still_there():
    first = magnify("AdamW", clears=False)[0]
    assert first.moves[0] == "clear (left out)" and plots.moves_sentence(first).endswith("nothing has moved.")
    assert first.after[0, 1] > 0.9  # clipped to 1 in the update before, and kept


def test_the_schedule_is_said_to_move_the_rate():
    last = magnify()[-1]
    assert plots.moves_sentence(last) == "After schedule: the rate went from 0.00667 to 0.0075; nothing else moved."


def test_slow_motion_leaves_the_random_streams_alone():
    before = torch.get_rng_state()
    magnify()
    assert torch.equal(before, torch.get_rng_state())
