"""Promises of lesson 02's pictures: what is said and drawn comes from the data."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.lab import theme
from labkit.lab.plots import seeding


def look(first: int | None, guess: int | None = None) -> seeding.LookPlot:
    plain = np.linspace(2, 1, 30)
    looked = plain.copy()
    if first is not None:
        looked[first - 1 :] += 0.01
    return seeding.LookPlot(plain, looked, (10, 20), guess)


def test_the_first_different_update_is_found_and_said():
    assert look(11).first == 11 and look(None).first is None
    assert seeding.look_sentence(look(11)) == (
        "Updates 1 to 10 have the same loss in every bit; update 11 is the first that differs."
    )
    assert "All 30 updates" in seeding.look_sentence(look(None))


def test_equal_updates_are_filled_and_a_guess_is_marked():
    curve, strip = seeding.look(look(11, guess=20)).axes
    assert [len(squares.get_offsets()) for squares in strip.collections] == [10, 20]
    assert "your guess" in [line.get_label() for line in curve.lines]
    assert "your guess" not in [line.get_label() for line in seeding.look(look(11)).axes[0].lines]


def test_equal_bits_are_said_and_lie_on_the_floor_of_the_log_axis():
    data = seeding.ApartPlot({"run again": np.zeros(4), "another seed": np.array([8.0, 9.0, 9.1, 9.2])})
    assert seeding.apart_sentence(data) == (
        "How far apart the parameters are after 4 updates: run again, equal bits; another seed, about 9.2."
    )
    again, other, *_ = seeding.apart(data).axes[0].lines
    assert set(again.get_ydata()) == {8.0 / 30} and list(other.get_ydata()) == [8.0, 9.0, 9.1, 9.2]


def luck() -> seeding.LuckPlot:
    return seeding.LuckPlot({"B": np.array([1.1, -0.4, -0.4]), "C": np.array([2.0, 3.0, 4.0])}, {"B": 0.9, "C": 0.6})


def test_luck_is_said_with_best_seed_mean_and_interval_and_equal_seeds_are_stacked():
    assert seeding.luck_sentence(luck()) == (
        "B: luckiest seed +1.1 points, mean +0.1 plus or minus 0.9; "
        "C: luckiest seed +4.0 points, mean +3.0 plus or minus 0.6."
    )
    dots = seeding.luck(luck()).axes[0].collections[0].get_offsets()
    assert len(dots) == 3 and dots[1][1] < dots[2][1]


@pytest.mark.parametrize(
    ("draw", "tell", "data"),
    [
        (seeding.look, seeding.look_sentence, look(11)),
        (seeding.apart, seeding.apart_sentence, seeding.ApartPlot({"a": np.array([0.0, 1e-7])})),
        (seeding.luck, seeding.luck_sentence, luck()),
    ],
)
def test_alt_text_is_the_sentence_and_pictures_repeat(draw, tell, data):
    figure = draw(data)
    assert figure.alt == tell(data) and theme.png(figure) == theme.png(draw(data))
    assert len(theme.png(figure)) < 60_000
