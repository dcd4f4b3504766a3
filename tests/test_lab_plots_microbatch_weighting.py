"""Promises of lesson 03's pictures and of its widget's arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.lab import theme
from labkit.lab.plots import microbatch_weighting as pictures


def lengths(guess: float | None = None) -> pictures.LengthsPlot:
    return pictures.LengthsPlot({"real": np.array([5, 6, 7]), "B": np.array([3, 4, 20])}, guess)


def test_mean_lengths_are_said_and_very_long_names_stay_in_the_picture():
    assert pictures.lengths_sentence(lengths()) == "Mean length in letters: real 6.0, B 9.0."
    axes = pictures.lengths(lengths(guess=4)).axes[0]
    drawn = axes.lines[1].get_ydata()
    assert np.isclose(sum(drawn), 100) and np.isclose(drawn[13], 100 / 3)
    assert axes.lines[-1].get_label() == "your guess"


CUTS = pictures.CutsPlot(
    {"one alone": 3.5, "fours": 0.23, "eights": 0.06}, {"one alone": 0.18, "fours": 0.012, "eights": 0.002}
)


def test_the_cut_that_is_best_hidden_is_wrong_by_a_tenth_at_least():
    assert pictures.cuts_sentence(CUTS) == "Best hidden: fours. Its gradient is off by 23%, the reported loss by 1.2%."
    assert "No gradient" in pictures.cuts_sentence(pictures.CutsPlot({"eights": 0.06}, {"eights": 0.001}))
    assert [bar.get_width() for bar in pictures.cuts(CUTS).axes[0].patches][:3] == [350, 23, 6]


BREAKS = pictures.BreaksPlot({"plain": 3e-16, "equal": 0.0, "BatchNorm": 0.2}, 1e-9)


def test_rounding_is_told_apart_from_another_gradient():
    assert pictures.breaks_sentence(BREAKS) == "2 of 3 agree to rounding; broken by: BatchNorm."
    words = [text.get_text().strip() for text in pictures.breaks(BREAKS).axes[0].texts]
    assert words == ["rounding", "rounding", "another gradient"]


NAMES, LETTERS = ["jo", "anna", "maria"], np.array([3, 5, 6])
GRADIENTS = np.random.default_rng(0).standard_normal((3, 40))


def test_averaging_two_means_gives_each_piece_half_and_each_letter_of_a_piece_the_same():
    data = pictures.vote_data(NAMES, LETTERS, GRADIENTS, 1, "average of means")
    assert np.allclose(data.share, [0.5, 0.5 * 5 / 11, 0.5 * 6 / 11])
    by_hand = (GRADIENTS[0] / 3 + GRADIENTS[1:].sum(0) / 11) / 2
    right = GRADIENTS.sum(0) / 14
    assert np.isclose(data.error[0], np.linalg.norm(by_hand - right) / np.linalg.norm(right))
    assert np.isclose(data.imbalance[0], 0.5 / (3 / 14)) and len(data.error) == 2 and data.you == 0


@pytest.mark.parametrize("cut", [1, 2])
def test_total_over_count_gives_every_name_its_due_whatever_the_cut(cut):
    data = pictures.vote_data(NAMES, LETTERS, GRADIENTS, cut, "total over count")
    assert np.allclose(data.share, LETTERS / 14) and np.allclose(data.error, 0) and data.angle < 1e-4


@pytest.mark.parametrize(
    ("draw", "tell", "data"),
    [
        (pictures.lengths, pictures.lengths_sentence, lengths()),
        (pictures.cuts, pictures.cuts_sentence, CUTS),
        (pictures.breaks, pictures.breaks_sentence, BREAKS),
    ],
)
def test_alt_text_is_the_sentence_and_pictures_repeat(draw, tell, data):
    figure = draw(data)
    assert figure.alt == tell(data) and theme.png(figure) == theme.png(draw(data))
    assert len(theme.png(figure)) < 60_000
