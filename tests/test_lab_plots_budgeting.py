"""Lesson 08: pictures say what their data say, simulated failures agree with mathematics, and the widget is quick."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest

from labkit.errors import ProofError
from labkit.lab import plots, theme, timing_child, timings, widgets
from labkit.lab.plots import budgeting as pictures
from labkit.lab.plots.budget import PARTS
from labkit.lab.recorded_timings import RECORDED


def batches(**more):
    seconds = {("mlp", 8): 0.5e-3, ("mlp", 64): 0.5e-3, ("conv", 8): 1e-3, ("conv", 64): 2e-3}
    return pictures.BatchPlot(seconds, RECORDED.update, RECORDED.machine, 1257, **more)


def first():
    return pictures.FirstPlot([5e-3, 1e-3, 1e-3, 1e-3, 2e-3, *[1e-3] * 7], RECORDED.first, RECORDED.machine)


def parts():
    one = dict.fromkeys(PARTS, 0.1)
    two = {**one, "data": 1.4}
    both = {"as it is": one, "slow data": two}
    return pictures.PartsPlot(both, both, "a recorded machine")


def equal():
    differences = {"equal updates": np.array([0.1, 0.2]), "equal images": np.array([-0.1, -0.3])}
    verdicts = {"equal updates": "worse", "equal images": "cannot tell"}
    return pictures.EqualPlot(differences, {"equal updates": 0.05, "equal images": 0.2}, verdicts)


EVERY = {
    "batches": (pictures.batch, pictures.batch_sentence, batches),
    "first": (pictures.first, pictures.first_sentence, first),
    "parts": (pictures.parts, pictures.parts_sentence, parts),
    "equal": (pictures.equal, pictures.equal_sentence, equal),
}


@pytest.mark.parametrize("name", EVERY)
def test_alt_text_is_the_sentence_and_plain_text_has_no_measured_value(name):
    draw, tell, data = EVERY[name]
    figure = draw(data())
    assert figure.alt == tell(data()) and repr(figure) == f"[picture: {figure.name}]"
    assert not any(letter.isdigit() for letter in figure.name)
    assert len(theme.png(figure)) < 60_000
    assert all(axes.get_xlabel() or axes.get_ylabel() for axes in figure.axes)


def test_an_epoch_counts_its_short_batch_and_the_sentence_compares_smallest_with_usual():
    data = batches()
    assert data.epoch("mlp", 64) == 20 * 0.5e-3 and data.epoch("mlp", 8) == 158 * 0.5e-3
    assert data.longer("mlp") == pytest.approx(7.9) and data.longer("conv") == pytest.approx(3.95)
    assert pictures.batch_sentence(data) == (
        "A batch of 8 in place of 64. mlp: an update takes 1 times as long, an epoch 7.9 times; "
        "conv: an update takes 0.5 times as long, an epoch 4 times."
    )


def test_a_guess_is_a_star_at_its_epoch_and_without_one_there_is_none():
    (star,) = [line for line in pictures.batch(batches(guess=4)).axes[1].lines if line.get_label() == "your guess"]
    assert star.get_ydata()[0] == pytest.approx(4 * 20 * 0.5)
    assert not [line for line in pictures.batch(batches()).axes[1].lines if line.get_label() == "your guess"]


def test_three_forecasts_of_one_run():
    assert first().usual == 1e-3
    assert pictures.first_sentence(first()) == (
        "Forecast of 2,000 updates: from the first alone 10 s, from the first five 4 s, from those after them 2 s."
    )


def test_a_network_twice_as_fast_saves_half_of_forward_and_backward():
    assert parts().share("as it is", "forward", "backward") == pytest.approx(2 / 7)
    assert "slow data: most time goes to data; forward and backward twice as fast would save 5%" in (
        pictures.parts_sentence(parts())
    )
    widths = [bar.get_width() for bar in pictures.parts(parts()).axes[0].patches]
    assert sum(widths) == pytest.approx(400), "each of four bars is a hundred per cent"


def test_the_recorded_set_is_whole_and_shows_what_the_lesson_says():
    assert set(RECORDED.update) == {(name, size) for name in timings.NETWORKS for size in timings.BATCHES}
    assert set(RECORDED.runs) == set(timings.INTERVALS) and set(RECORDED.parts) == set(timings.WHAT)
    for bars in (*RECORDED.parts.values(), *(bar for pair in RECORDED.runs.values() for bar in pair)):
        assert set(bars) == set(PARTS) and all(seconds >= 0 for seconds in bars.values())
    data = pictures.BatchPlot(RECORDED.update, RECORDED.update, "", 1257)
    assert all(data.longer(name) > 2 for name in data.networks)
    assert RECORDED.first[0] > 2 * np.median(RECORDED.first[5:])
    assert RECORDED.runs[5][1]["save"] > 2 * RECORDED.runs[200][1]["save"]


# ------------------------------------------------------------------------- times and failures


@pytest.mark.parametrize(("every", "save", "mean"), [(5, 5, 1000), (100, 5, 1000), (800, 5, 1000), (50, 20, 250)])
def test_simulated_failures_agree_with_the_closed_form(every, save, mean):
    """Tries of a stretch s = every + save until none fails last mean x (exp(s / mean) - 1) on average."""
    due = math.expm1((every + save) / mean) * mean / every - 1
    assert timings.simulated(every, save, mean) == pytest.approx(due, rel=0.02)
    assert timings.simulated(every, save, mean) == timings.simulated(every, save, mean)


def test_simulated_failures_agree_with_a_clock_that_is_moved_by_hand():
    rng, clock, done = np.random.default_rng(3), 0.0, 0
    failure = rng.exponential(1000)
    while done < 300_000:
        if clock + 105 <= failure:
            clock, done = clock + 105, done + 100
        else:
            clock, failure = failure, failure + rng.exponential(1000)
    assert timings.simulated(100, 5, 1000) == pytest.approx(clock / done - 1, abs=0.015)


def test_stages_become_parts_and_nothing_is_lost():
    stages = {"data": 1, "transfer": 2, "first forward": 4, "forward": 8, "measure": 16, "publish": 32, "record": 64}
    found = timings.by_part(stages)
    assert found == {"data": 3, "forward": 12, "backward": 16, "optimizer": 0, "evaluation": 0, "save": 32, "other": 64}


def test_a_real_run_is_profiled_and_a_plan_is_divided_like_its_sample(tmp_path: Path):
    found = timings.planned_and_run(tmp_path, intervals=(100,))
    ((every, (planned, real)),) = found.items()
    assert every == 100 and set(planned) == set(real) == set(PARTS)
    assert all(real[part] > 0 for part in PARTS) and all(seconds > 0 for seconds in planned.values())


def test_works_take_turns_and_the_first_two_of_each_are_left_out():
    calls: list[str] = []
    now = [0.0]

    def work(name: str, later: float) -> None:
        calls.append(name)
        now[0] += later if calls.count(name) > 2 else 0.001  # a first call that is quicker would win

    found = timings.alternately({"a": lambda: work("a", 1), "b": lambda: work("b", 2)}, 3, lambda: now[0])
    assert calls == ["a", "b"] * 5 and found == pytest.approx({"a": 1, "b": 2})


def test_a_fresh_process_times_its_updates(monkeypatch):
    seconds = timings.first_updates(3)
    assert len(seconds) == 3 and all(0 < one < 60 for one in seconds)
    monkeypatch.setattr(timing_child, "__file__", str(Path(__file__).parent / "no_such_file.py"))
    with pytest.raises(ProofError, match="timing process failed"):
        timings.first_updates(3)


def test_the_child_prints_one_list(capsys):
    assert timing_child.main(2) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


# ------------------------------------------------------------------------- the widget


def bare_seconds() -> float:
    """Processor time of an empty picture of two panels, the quickest of three."""
    seconds = []
    for _ in range(3):
        begun = time.process_time()
        figure = theme.picture("empty")
        theme.panel(figure, (0.1, 0.1, 0.4, 0.7))
        theme.panel(figure, (0.6, 0.1, 0.3, 0.7))
        theme.png(figure, quick=True)
        seconds.append(time.process_time() - begun)
    return min(seconds)


def test_widget_of_the_lesson_follows_its_controls_within_150_ms_of_work():
    grid = np.unique([*np.geomspace(5, 1000, 60).round(), *timings.INTERVALS])

    def budget(every, failures, save):
        costs = np.array([timings.simulated(one, save, failures) for one in grid])
        return plots.BudgetPlot(grid, costs, every, *RECORDED.runs[every], RECORDED.machine)

    explorer = widgets.Explorer(
        {"every": widgets.slider("save every", timings.INTERVALS, 100),
         "failures": widgets.choice("one failure in", [250, 1000, 4000], 1000)},
        lambda **settings: plots.budget(budget(**settings)),
        lambda **settings: plots.budget_sentence(budget(**settings)),
        more={"save": widgets.choice("a save costs", [1, 5, 20], 5)},
    )  # fmt: skip
    seconds, pictures_seen = [], {explorer.image.value}
    for name, value in (("every", 5), ("failures", 250), ("save", 20), ("every", 200), ("failures", 4000)):
        begun = time.process_time()
        explorer.controls[name].value = value
        seconds.append(time.process_time() - begun)
        pictures_seen.add(explorer.image.value)
        assert explorer.trouble.value == "" and f"Every {explorer.values['every']} costs" in explorer.sentence.value
    assert len(pictures_seen) == 6
    assert min(seconds) < max(0.15, 4 * bare_seconds()), "150 ms, or as much as four empty pictures where others work"
