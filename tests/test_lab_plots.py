"""Promises of the pictures: the data behind them and the sentences computed from it."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from labkit.errors import LabkitError
from labkit.lab import plots, theme


def two_runs(differ_from: int | None, distance_from: int | None, probe_factor: float = 1.0, band: bool = True):
    updates = np.arange(51, 101)
    probe = np.linspace(1.0, 0.5, 50)
    loss = [float(x) for x in probe * 2]
    other = [
        x * (1.25 if differ_from is not None and u >= differ_from else 1.0) for u, x in zip(updates, loss, strict=True)
    ]
    away = np.array([0.5 if distance_from is not None and u >= distance_from else 0.0 for u in updates])
    wrong = np.where(updates >= (differ_from or 999), probe * probe_factor, probe)
    straight = {"indices": [f"{u:x}" for u in updates], "loss": loss, "rate": [0.01] * 50, "probe": probe}
    resumed = {**straight, "loss": other, "probe": wrong}
    spread = np.stack([probe * f for f in (0.8, 1.0, 1.1)]) if band else None
    return plots.resume_plot(70, "optimizer", straight, resumed, distance=away, band=spread, first=51)


def test_two_equal_runs_never_differ():
    data = two_runs(None, None)
    assert data.equal.all() and data.differences == ()
    assert (
        plots.sentence(data)
        == "Stopped after 70, optimizer lost: the two runs never differ, in any recorded bit, through update 100."
    )


def test_the_sentence_names_update_and_quantity_that_differ_first_and_when_the_curve_would_have_told():
    data = two_runs(differ_from=72, distance_from=71, probe_factor=3.0)
    assert [(d.quantity, d.update) for d in data.differences] == [("parameters", 71), ("loss", 72)]
    assert data.leaves_band_at == 72
    assert plots.sentence(data, values=False) == (
        "Stopped after 70, optimizer lost: equal through update 70, the first to differ: parameters "
        "at 71, then loss at 72; the curve leaves the band of 3 seeds at 72."
    )
    assert "(1.57 against 1.96)" in plots.sentence(data)


def test_a_quiet_loss_is_said_to_be_one():
    data = two_runs(differ_from=72, distance_from=71, probe_factor=1.05)
    assert data.leaves_band_at is None
    assert plots.sentence(data).endswith("the curve never leaves the band of 3 seeds: you would not have noticed.")


def test_a_probe_loss_that_is_not_a_number_leaves_the_band():
    assert two_runs(differ_from=72, distance_from=71, probe_factor=float("nan")).leaves_band_at == 72


def test_only_updates_after_the_stop_can_leave_the_band():
    data = two_runs(None, None)
    assert data.band_low is not None
    early = dataclasses.replace(data, band_low=np.where(data.updates <= 70, 9.0, data.band_low))
    assert early.leaves_band_at is None


def test_without_a_band_the_sentence_does_not_judge_the_curve():
    assert "no band of seeds" in plots.sentence(two_runs(72, 71, band=False))


def test_the_strip_is_filled_where_every_recorded_bit_and_the_parameters_are_equal():
    data = two_runs(differ_from=72, distance_from=71)
    assert data.equal.tolist() == [u < 71 for u in range(51, 101)]
    strip = plots.resumed_against_uninterrupted(data).axes[3]
    filled, hollow = strip.collections
    assert len(filled.get_offsets()) == 20 and len(hollow.get_offsets()) == 30
    assert filled.get_facecolor()[0].tolist() != hollow.get_facecolor()[0].tolist()


def test_one_different_bit_is_a_difference_and_two_nans_are_not():
    probe = np.ones(2)
    straight = {"loss": [1.0, float("nan")], "rate": [0.1, 0.1], "probe": probe}
    same = plots.resume_plot(1, "nothing", straight, dict(straight), distance=[0, 0])
    assert same.differences == ()
    off = plots.resume_plot(
        1, "nothing", straight, {**straight, "loss": [float(np.nextafter(1.0, 2.0)), float("nan")]}, distance=[0, 0]
    )
    assert off.differences[0].update == 1 and off.differences[0].quantity == "loss"
    assert off.equal.tolist() == [False, True], "a recorded quantity counts even where the parameters are equal"


def test_runs_that_do_not_fit_together_are_refused():
    straight = {"loss": [1.0], "rate": [0.1], "probe": [1.0]}
    with pytest.raises(LabkitError, match="the same in both"):
        plots.resume_plot(1, "nothing", straight, {"rate": [0.1], "probe": [1.0]}, distance=[0])
    with pytest.raises(LabkitError, match="one entry per update"):
        plots.resume_plot(1, "nothing", straight, straight, distance=[0, 0])


def test_the_two_runs_are_told_apart_without_colour_and_axes_have_units():
    figure = plots.resumed_against_uninterrupted(two_runs(72, 71, probe_factor=3.0))
    loss, away, rate, _ = figure.axes
    straight, resumed = loss.lines[:2]
    assert straight.get_linestyle() != resumed.get_linestyle() and straight.get_marker() != resumed.get_marker()
    assert loss.get_yscale() == away.get_yscale() == "log"
    assert "nats" in loss.get_ylabel() and away.get_xlabel() == rate.get_xlabel() == "update"
    assert "equal bits" in [text.get_text() for text in away.get_yticklabels()]


def test_a_picture_is_shown_as_png_with_alt_text_and_plain_text_without_measured_values():
    figure = plots.resumed_against_uninterrupted(two_runs(72, 71))
    data, metadata = figure._repr_mimebundle_()
    assert data["image/png"].startswith(b"\x89PNG") and len(data["image/png"]) < 60_000
    assert data["text/plain"] == "[picture: resumed against uninterrupted: stopped after 70, optimizer lost]"
    assert metadata["image/png"]["alt"] == plots.sentence(two_runs(72, 71))


def test_the_same_data_gives_the_same_bytes():
    first, second = (theme.png(plots.resumed_against_uninterrupted(two_runs(72, 71))) for _ in range(2))
    assert first == second


def test_pyplot_and_its_global_figures_are_never_loaded():
    code = "import sys; from labkit import lab; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_any_figure_can_be_made_static_with_alt_text():
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 2))
    figure.add_subplot().plot([1, 2])
    twin = theme.static(figure, "two points", "They rise.")
    data, metadata = twin._repr_mimebundle_()
    assert data["text/plain"] == "[picture: two points]" and metadata["image/png"]["alt"] == "They rise."
