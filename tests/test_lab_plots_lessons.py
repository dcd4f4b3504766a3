"""Promises of the pictures of lessons 01 to 08: sentences and drawn values come from the data."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.lab import plots, theme

PARTS = ("weights", "gradient buffer", "first moment", "second moment", "BatchNorm statistics")


def moves(shown: int) -> plots.MovesPlot:
    distance = np.zeros((3, 5))
    distance[1, 1], distance[2, [0, 2, 3]] = 0.84, (0.3, 0.1, 0.02)
    before = np.zeros((3, 5))
    rates = np.array([0.01, 0.02, 0.03])
    return plots.MovesPlot(
        ("clear", "backward", "optimizer"), PARTS, distance, before, before + distance, shown, rates, 0, 1, False
    )


def test_a_move_is_said_with_what_it_touched_and_nothing_else():
    assert plots.moves_sentence(moves(0)) == "After clear: nothing has moved."
    assert (
        plots.moves_sentence(moves(1))
        == "After backward: gradient buffer went from norm 0 to 0.84; nothing else moved."
    )
    bars, rates = plots.update_moves(moves(1)).axes
    assert [bar.get_width() for bar in bars.patches] == [0, 0.84, 0, 0, 0]
    assert [line.get_ydata()[0] for line in rates.lines[1:]] == [0.01, 0.01]


def test_streams_are_said_row_by_row_and_drawn_filled_and_hollow():
    equal = np.ones((2, 6), dtype=bool)
    equal[1, 3:] = False
    data = plots.StreamsPlot("numpy's global generator", 2, 10, ("order", "dropout masks"), 8, equal)
    assert plots.streams_sentence(data) == (
        "2 numbers drawn from numpy's global generator after update 10: "
        "order equal, dropout masks different from update 11."
    )
    groups = plots.streams(data).axes[0].collections
    assert [len(group.get_offsets()) for group in groups] == [6, 0, 3, 3]


def test_the_vote_compares_share_and_due_share():
    letters = np.array([3, 7, 10])
    share = np.array([0.5, 0.5 * 7 / 17, 0.5 * 10 / 17])
    data = plots.VotePlot(
        ("jo", "anna", "marianne"),
        letters,
        share,
        1,
        "average of means",
        68.0,
        np.array([1.0, 3.3]),
        np.array([0.0, 0.9]),
        1,
    )
    assert plots.vote_sentence(data) == (
        "'jo' and its end mark are 3 of 20 targets (15.0%) and have 50.0% of the update; "
        "the gradient points 68 degrees away."
    )
    bars = plots.vote(data).axes[0].patches
    assert [round(bar.get_height(), 3) for bar in bars] == [round(100 * s, 3) for s in share]


@pytest.mark.parametrize(("left", "words"), [("half", "a name on half a file"), ("none", "nothing to resume from")])
def test_the_first_fatal_cut_is_named(left, words):
    bad = plots.PublicationPlot(("write", "rename", "sync"), ("old", left, "new"))
    assert plots.publication_sentence(bad) == f"A power cut after move 2 (rename) leaves {words}; 1 of 3 cuts do."
    good = plots.PublicationPlot(("write", "rename"), ("old", "new"))
    assert "any of the 2 moves leaves a complete checkpoint" in plots.publication_sentence(good)
    assert plots.publication(bad).axes[0].lines


def test_flips_are_counted_by_reader():
    data = plots.FlipsPlot(
        400,
        {
            "restricted loading": {"noticed": 19, "no effect": 26, "other numbers": 355},
            "verified folder": {"noticed": 400},
        },
    )
    assert (
        plots.flips_sentence(data)
        == "Of 400 files with one flipped bit, restricted loading noticed 19, verified folder noticed 400."
    )
    assert [bar.get_width() for bar in plots.flips(data).axes[0].patches] == [19, 400, 26, 0, 355, 0]


def test_what_an_average_is_made_of_sums_to_one_and_keeps_the_start_by_the_decays():
    made = plots.shares(np.full(150, 0.99))
    assert np.allclose(made.sum(0), 1) and np.isclose(made[0, -1], 0.99**150)
    assert np.isclose(made[3, 0], 0.01) and made[1, 99] == 0 and made[1, 149] > 0
    warm = np.minimum(0.999, (1 + np.arange(50)) / (10 + np.arange(50)))
    assert np.isclose(plots.shares(warm)[0, -1], warm.prod())


def average(lost: str = "") -> plots.AveragePlot:
    updates = np.arange(1, 101)
    curve = 2 / updates**0.5
    return plots.AveragePlot(
        updates, curve, curve * 2, 0.9, 0.18, plots.shares(np.full(100, 0.999)), 0.999, False, lost, 50 if lost else 0
    )


def test_the_average_says_how_much_random_start_is_left():
    said = plots.average_sentence(average())
    assert (
        said
        == "Update 100, decay 0.999: 90% of the average is still the random start; it scores 18%, the raw weights 90%."
    )
    assert "resumed at 50 with count lost" in plots.average_sentence(average("count"))
    assert plots.average(average("count")).axes[1].get_ylabel() == "per cent"


def norms(length: float, norm: np.ndarray | None = None) -> plots.NormsPlot:
    updates = np.arange(1, 11)
    measured = np.full(10, 0.4) if norm is None else norm
    curve = np.array([2.0, 0.2])
    return plots.NormsPlot(
        updates, measured, 1e-4, np.full(10, length), np.full(10, 0.0776), np.array([1, 10]), curve, curve, "AdamW"
    )


def test_clipping_everything_and_the_length_of_the_update_are_told_apart():
    assert "all 10 updates clipped; the mean length of an update stayed the same" in plots.norms_sentence(norms(0.0775))
    assert "fell to 1/10" in plots.norms_sentence(norms(0.00776))
    assert "+20.0%" in plots.norms_sentence(norms(0.09312))


def test_a_norm_that_is_not_finite_is_marked_and_counts_as_beyond_the_threshold():
    norm = np.full(10, 1e-5)
    norm[3] = np.inf
    assert "1 of 10 updates clipped" in plots.norms_sentence(norms(0.0775, norm))
    labels = [line.get_label() for line in plots.norms(norms(0.0775, norm)).axes[0].lines]
    assert labels == ["norm", "not finite", "threshold 0.0001"]


def test_the_flat_bottom_is_one_piece_around_the_best_interval():
    intervals = np.array([10, 50, 65, 100, 155, 200, 800])
    data = plots.BudgetPlot(
        intervals, 5 / intervals + intervals / 2000, 200, {"forward": 1.0}, {"forward": 1.1, "save": 0.5}
    )
    assert data.best == 100 and data.flat == (65, 155)
    assert plots.budget_sentence(data).startswith(
        "Save every 100 updates; anywhere from 65 to 155 costs less than one point more."
    )
    bars = plots.budget(data).axes[1].patches
    assert [bar.get_height() for bar in bars] == [1.0, 1.1, 0.0, 0.5]


EVERY = {
    "moves": (plots.update_moves, plots.moves_sentence, moves(2)),
    "average": (plots.average, plots.average_sentence, average("count")),
    "norms": (plots.norms, plots.norms_sentence, norms(0.05)),
}


@pytest.mark.parametrize("name", EVERY)
def test_alt_text_is_the_sentence_and_plain_text_has_no_measured_value(name):
    draw, tell, data = EVERY[name]
    figure = draw(data)
    assert figure.alt == tell(data) and theme.png(figure) == theme.png(draw(data))
    bundle, metadata = figure._repr_mimebundle_()
    assert bundle["text/plain"] == f"[picture: {figure.name}]" and metadata["image/png"]["alt"] == figure.alt
    assert len(bundle["image/png"]) < 60_000
    assert all(axes.get_title(loc="left") for axes in figure.axes)


def test_numbers_on_a_log_axis_are_plain_characters():
    assert [theme._decade(v) for v in (1e-6, 0.01, 1, 1e7)] == ["10⁻⁶", "0.01", "1", "10⁷"]
