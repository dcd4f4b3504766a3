"""Promises of the runs behind the slider of lesson 07, and of what its picture says about them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from labkit import randomness
from labkit.lab import norm_runs, plots
from labkit.recipes import digits


@pytest.fixture(scope="module")
def clipped_sgd() -> norm_runs.Runs:
    return norm_runs.run("SGD")


def alone(limit: float, updates: int, seed: int = 0) -> list[float]:
    """Norms before clipping of an ordinary loop over the network itself, SGD, with the dropout mask of the copies."""
    with randomness.preserved():
        randomness.seed_all("norm runs", seed)
        model, data = digits.mlp(), digits.load("train")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        found = []
        for rows in norm_runs._batches(len(data), seed)[:updates]:
            mask = nn.functional.dropout(torch.ones(len(rows), norm_runs.HIDDEN), 0.2)
            optimizer.zero_grad()
            hidden = model[1](data.images[rows].flatten(1)).relu() * mask
            nn.functional.cross_entropy(model[4](hidden), data.labels[rows]).backward()
            found.append(nn.utils.clip_grad_norm_(model.parameters(), limit).item())
            optimizer.step()
    return found


@pytest.mark.parametrize("limit", [1e-4, 0.1, 10.0, math.inf])
def test_each_copy_is_the_run_that_an_ordinary_loop_with_its_threshold_makes(clipped_sgd, limit):
    row = -1 if math.isinf(limit) else norm_runs.THRESHOLDS.index(limit)
    assert np.allclose(clipped_sgd.norm[row, :25], alone(limit, 25), rtol=1e-3)


def test_the_threshold_matters_to_sgd_and_not_to_adamw(clipped_sgd):
    adamw = norm_runs.run("AdamW")
    at = norm_runs.THRESHOLDS.index(1e-4)
    assert adamw.loss[at, -1] < 1.2 * adamw.loss[-1, -1] and clipped_sgd.loss[at, -1] > 5 * clipped_sgd.loss[-1, -1]
    assert adamw.loss[0, -1] > 2  # 1e-8: epsilon


def test_no_threshold_saves_a_run_from_an_infinity_and_the_guard_does():
    lost, guarded = norm_runs.run("SGD", "infinity"), norm_runs.run("SGD", "infinity", guard=True)
    assert not np.isfinite(lost.loss[:, -1]).any() and np.isfinite(guarded.loss).all()
    assert (guarded.length[:, norm_runs.AT - 1] == 0).all() and (guarded.length[:-1, norm_runs.AT] > 0).all()
    said = plots.norms_sentence(norm_runs.plotted(lost, 1.0, "SGD", "infinity"))
    assert f"update {norm_runs.AT} was not finite, and the weights are lost from there on" in said
    said = plots.norms_sentence(norm_runs.plotted(guarded, 1.0, "SGD", "infinity", guard=True))
    assert f"attempt {norm_runs.AT} was not finite and was skipped" in said


def test_a_frozen_layer_and_a_spike_show_in_the_norm(clipped_sgd):
    spike, frozen = (norm_runs.run("SGD", event) for event in ("spike", "frozen layer"))
    place = norm_runs.AT - 1
    assert (spike.norm[:, place] > 10 * clipped_sgd.norm[:, place]).all()
    assert (frozen.norm[:, place] < clipped_sgd.norm[:, place]).all()
    assert np.array_equal(frozen.norm[:, :place], clipped_sgd.norm[:, :place])


def test_the_runs_leave_the_callers_streams():
    before = torch.get_rng_state()
    norm_runs.run("AdamW")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("event", norm_runs.EVENTS)
def test_every_event_can_be_drawn_at_both_ends_of_the_slider(event):
    runs = norm_runs.run("SGD", event)
    for threshold in (norm_runs.THRESHOLDS[0], norm_runs.THRESHOLDS[-1]):
        data = norm_runs.plotted(runs, threshold, "SGD", event)
        assert plots.norms(data).alt == plots.norms_sentence(data)
        assert "nan" not in plots.norms_sentence(data).lower()


def test_a_guess_is_the_unclipped_curve_made_so_many_times_slower():
    at = np.arange(10, 101, 10)
    falling, flat = 2.0 - at / 100, np.ones(10)
    data = plots.NormsPlot(at, flat, 0.5, flat, flat, at, falling, falling, "SGD", guess=2.0)
    marked = [line for line in plots.norms(data).axes[2].lines if line.get_label() == "your guess"]
    assert np.allclose(marked[0].get_ydata()[[3, 9]], [falling[1], falling[4]])
