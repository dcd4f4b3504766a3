"""Promises of the pictures of lesson 06, and of the runs behind its slider: they are what an average really does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labkit.ema import Ema
from labkit.lab import ema_runs, plots, theme
from labkit.lab.plots import ema as pictures
from labkit.lab.plots.average import made_of
from labkit.recipes import digits


@pytest.fixture(scope="module")
def short() -> ema_runs.Trail:
    return ema_runs.trail(ema_runs.CALM, seed=1, updates=40)


def test_a_trail_averaged_afterwards_is_the_average_kept_along_the_way(short):
    with torch.no_grad():
        model = digits.mlp()
        torch.nn.utils.vector_to_parameters(short.weights[0], model.parameters())
        ema = Ema(model, 0.98, warmup=True)
        for weights in short.weights[1:]:
            torch.nn.utils.vector_to_parameters(weights, model.parameters())
            ema.update(model)
        with ema.lent_to(model):
            kept = ema_runs.flat(model)
    later = ema_runs.averages(short, ema_runs.decays_used(0.98, True, 40))[-1]
    assert torch.allclose(later, kept, atol=1e-6)


def test_the_scores_are_those_of_the_network_itself(short):
    held, model = digits.load("validation"), digits.mlp().eval()
    loss, accuracy = ema_runs.scores(short.weights[[0, 40]], held)
    for row, update in enumerate((0, 40)):
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(short.weights[update].clone(), model.parameters())
            outputs = model(held.images)
        assert np.isclose(loss[row], torch.nn.functional.cross_entropy(outputs, held.labels).item(), rtol=1e-4)
        assert np.isclose(accuracy[row], (outputs.argmax(1) == held.labels).float().mean().item(), atol=0.005)


def test_a_trail_leaves_the_callers_streams_and_repeats(short):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    again = ema_runs.trail(ema_runs.CALM, seed=1, updates=40)
    assert torch.equal(torch.get_rng_state(), before) and torch.equal(again.weights, short.weights)
    assert not torch.equal(ema_runs.trail(ema_runs.CALM, seed=2, updates=2).weights[0], short.weights[0])


def test_a_lost_count_begins_the_warm_up_again_and_matters_only_with_warm_up():
    used = ema_runs.decays_used(0.98, True, 8, count_lost_at=5)
    assert np.allclose(used[5:], [1 / 10, 2 / 11, 3 / 12])
    assert np.allclose(used[:5], (1 + np.arange(5)) / (10 + np.arange(5)))
    assert (ema_runs.decays_used(0.98, False, 8, count_lost_at=5) == 0.98).all()


def test_a_lost_average_is_made_of_the_weights_at_the_stop(short):
    reset = ema_runs.averages(short, np.full(40, 0.9), reset_at=30)
    assert torch.equal(reset[30], short.weights[30]) and not torch.equal(reset[29], short.weights[29])
    parts = made_of(np.full(40, 0.9), reset_at=30)
    assert np.allclose(parts.sum(0), 1) and (parts[0, 29:] == 0).all() and parts[0, 28] > 0


def test_the_sentence_says_what_the_loss_did_to_the_next_updates_or_that_nothing_changed(short):
    lost = ema_runs.plotted(short, 0.98, True, "count", stop=20)
    assert lost.whole is not None and "with nothing lost" in plots.average_sentence(lost)
    same = ema_runs.plotted(short, 0.98, False, "count", stop=20)
    assert plots.average_sentence(same).endswith("without warm-up the count decides nothing.")
    assert ema_runs.plotted(short, 0.98, True).whole is None


def test_the_opening_says_both_scores_and_marks_the_guess():
    updates = np.arange(1, 101)
    data = pictures.StartPlot(updates, np.full(100, 90.0), np.full(100, 21.0), 0.999, at=100, guess=80.0)
    said = pictures.start_sentence(data)
    assert "raw weights are right on 90%" in said and "average on 21%" in said and "90% of it is still" in said
    figure = pictures.start(data)
    marked = [line for line in figure.axes[0].lines if line.get_label() == "your guess"]
    assert [list(line.get_ydata()) for line in marked] == [[80.0]] and figure.alt == said


def test_ratios_are_drawn_one_dot_a_seed_beside_the_line_at_one():
    data = pictures.RatioPlot("t", ("a", "b"), np.array([[1.0, 2.0], [0.5, 0.9]]), "the raw weights")
    assert pictures.ratios_sentence(data) == (
        "Loss in units of the raw weights, over 2 seeds: a 1.00 to 2.00; b 0.50 to 0.90."
    )
    figure = pictures.ratios(data)
    assert [list(line.get_xdata()) for line in figure.axes[0].lines] == [[1.0, 1.0], [1.0, 2.0], [0.5, 0.9]]
    assert len(theme.png(figure)) < 60_000
