"""Lesson 04: the losses ranked, examples counted, the band an eye would see, runs resumed and ready to plot."""

from __future__ import annotations

import time

import numpy as np
import pytest

from labkit.errors import LabkitError
from labkit.lab import Explorer, choice, slider, theme, tick
from labkit.lab.plots.checkpointing import RankPlot, SeenPlot, rank, rank_sentence, seen, seen_sentence
from labkit.lab.plots.resume import resume_plot, sentence
from labkit.lab.resumes import LOG, WORDS, Resumes
from labkit.proof.ablate import Ablation, Loss, leaves_band, spread

NAMES = {"A": "all three", "B": "first moment", "C": "count", "D": "second moment", "E": "both moments"}
AFTER = {"A": 0.1, "B": 0.017, "C": 0.012, "D": 6000.0, "E": 0.15}


def ranked(guess=None) -> RankPlot:
    return RankPlot(NAMES, AFTER, 0.012, guess)


def test_losses_without_a_trace_are_a_tie_told_by_the_alphabet() -> None:
    assert ranked().order == ["B", "C", "A", "E", "D"] and ranked().tied == 2
    assert ranked(["C", "B", "A", "E", "D"]).fair_guess == ranked().order, "the order within the tie does not count"
    assert ranked(["c ", "b", "e", "a", "d"]).fair_guess == ["B", "C", "E", "A", "D"]
    assert ranked(["A", "B", "C", "D", "E"]).fair_guess == ["A", "B", "C", "D", "E"], "a wrong guess stays as it is"
    assert ranked().fair_guess is None


def test_the_guess_is_marked_and_the_sentence_computed() -> None:
    assert rank_sentence(ranked()) == (
        "First moment and count: no visible trace. Second moment: the loss is 500,000 times as high."
    )
    texts = [text.get_text() for text in rank(ranked(["B", "C", "E", "A", "D"])).axes[0].texts]
    assert texts.count("as seen") == 3 and "you said place 4" in texts and "you said place 3" in texts
    assert "as seen" not in [text.get_text() for text in rank(ranked()).axes[0].texts]


def test_examples_seen_twice_and_never_are_counted() -> None:
    again, skipped = np.ones(100, dtype=int), np.ones(100, dtype=int)
    again[:66], skipped[66:] = 2, 0
    data = SeenPlot({"again": again, "next": skipped}, 73)
    assert seen_sentence(data) == (
        "Stopped after update 73. again: 66 seen twice, 0 never; next: 0 seen twice, 34 never."
    )
    widths = [bar.get_width() for bar in seen(data).axes[0].patches]
    assert widths == [34, 66, 66, 0, 0, 34]


def test_the_band_is_what_the_seeds_span_within_a_few_updates() -> None:
    curves = np.array([[5.0, 1, 1, 1, 1, 1], [2.0, 2, 2, 2, 2, 9]])
    low, high = spread(curves, reach=1)
    assert low.tolist() == [1, 1, 1, 1, 1, 1] and high.tolist() == [5, 5, 2, 2, 9, 9]
    assert [row.tolist() for row in spread(curves, reach=0)] == [[2, 1, 1, 1, 1, 1], [5, 2, 2, 2, 2, 9]]
    inside, above = np.full(10, 1.5), np.where(np.arange(10) == 4, 3.0, 1.5)
    band, straight = np.vstack([np.ones(20), np.full(20, 2.0)]), np.full(20, 1.2)
    assert leaves_band(inside, straight, band, 10) is None
    assert leaves_band(above, straight, band, 10) == 15
    assert leaves_band(np.full(10, np.nan), straight, band, 10) == 11


def test_log_and_state_are_told_apart() -> None:
    straight = {"indices": [1, 2, 3], "loss": [1.0, 1.0, 1.0], "buffers": ["a", "b", "c"], "rate": [1.0] * 3}
    straight["probe"] = [1.0, 1.0, 1.0]
    other = {**straight, "buffers": ["a", "x", "y"], "probe": [1.0, 0.1, 9.0]}
    data = resume_plot(1, "buffers", straight, other, distance=[0, 0, 0], band=np.ones((2, 3)), log=("indices", "loss"))
    assert data.logged is not None and data.logged.all() and data.equal.tolist() == [True, False, False]
    said = sentence(data)
    assert "buffers at 2; every number that training logs stays equal" in said
    assert said.endswith("leaves the band of 2 seeds at 2, downwards: it looks better.")
    moved = resume_plot(1, "optimizer", straight, other, distance=[0, 1, 1], log=("indices", "loss"))
    assert [d.quantity for d in moved.differences] == ["parameters", "buffers"], "parameters before other state"
    late = {**other, "loss": [1.0, 1.0, 2.0]}
    loud = resume_plot(1, "generator", straight, late, distance=[0, 0, 0], log=("indices", "loss"))
    assert loud.logged is not None and loud.logged.tolist() == [True, True, False]
    assert "that training logs" not in sentence(loud)


def test_the_three_answers_stand_in_a_table() -> None:
    text = Ablation("digits", 3, 9, (Loss("nothing", True, hurts="nothing here"), Loss("a<b", False)))._repr_html_()
    assert text.count("<tr>") == 3 and "a&lt;b" in text and "keeps no such piece" in text


# ------------------------------------------------------------------------------------------ real runs, a short one


@pytest.fixture(scope="module")
def runs() -> Resumes:
    small = {"conv": ("digits", {"network": "conv", "warmup": 3}), "mlp": ("digits", {"network": "mlp"})}
    return Resumes(small, attempts=26, stops=(13, 20), first=9, seeds=1)


def test_nothing_lost_is_equal_in_every_bit_and_so_is_a_cursor_at_the_edge(runs: Resumes) -> None:
    for stop, lost in ((13, ()), (20, ("cursor",)), (13, ("generator",))):
        data = runs.plot(stop, lost, "conv")
        assert data.equal.all() and data.differences == () and not data.distance.any(), (stop, lost)
    assert runs.plot(13, ("cursor",), "conv").differences[0].quantity == "indices"


@pytest.mark.parametrize(
    ("word", "first"),
    [("optimizer", "parameters"), ("second moment", "parameters"), ("schedule", "rate"), ("buffers", "buffers")],
)
def test_each_piece_has_its_signature_at_the_first_update_after_the_stop(runs: Resumes, word: str, first: str) -> None:
    data = runs.plot(13, (word,), "conv")
    assert (data.differences[0].quantity, data.differences[0].update) == (first, 14)
    assert data.logged is not None and data.updates[0] == 9 and data.seeds == 2
    loss = [d.update for d in data.differences if d.quantity == "loss"]
    assert loss == ([] if word == "buffers" else [15])


def test_pieces_that_a_recipe_does_not_keep_are_said_not_lost(runs: Resumes) -> None:
    assert runs.plot(13, ("buffers",), "mlp").differences == ()
    assert runs.tell(13, "buffers", "mlp").endswith("mlp keeps no buffers: nothing to lose.")
    assert runs.plot(13, ("generator",), "mlp").differences[0].quantity == "loss"


def test_ticks_and_choice_add_up_and_both_moments_and_count_are_the_optimizer(runs: Resumes) -> None:
    whole = runs.plot(13, ("optimizer",), "conv")
    parts = runs.plot(13, ("first moment", "second moment", "count"), "conv")
    assert parts.lost == "first moment and second moment and count"
    assert parts.distance.tolist() == whole.distance.tolist(), "three ticks are the same loss as the whole"
    said = runs.tell(13, "second moment", "conv", **{"first moment": True, "count": False})
    assert said.startswith("Stopped after 13, first moment and second moment lost")


def test_unknown_words_and_recipes_are_refused(runs: Resumes) -> None:
    with pytest.raises(LabkitError, match="adam"):
        runs.plot(13, ("adam",), "conv")
    with pytest.raises(LabkitError, match="vision"):
        runs.rehearsal("vision")
    assert set(LOG).isdisjoint(WORDS)


def test_the_widget_of_lesson_04_moves_by_its_traits_and_redraws_at_once(runs: Resumes) -> None:
    runs.prepare("conv", ("second moment", "buffers"))
    widget = Explorer(
        {"stop": slider("Stop after update", runs.stops, 13), "lost": choice("Lost", ["nothing", *WORDS], "nothing"),
         "recipe": choice("Recipe", list(runs.recipes))},
        runs.draw, runs.tell, more={word: tick(f"{word} lost too") for word in WORDS if word != "optimizer"},
    )  # fmt: skip
    seconds = []
    for stop, lost in ((13, "second moment"), (13, "buffers"), (20, "second moment"), (20, "buffers")):
        begun = time.process_time()
        widget.controls["stop"].value, widget.controls["lost"].value = stop, lost
        seconds.append(time.process_time() - begun)
        assert widget.trouble.value == "" and f"Stopped after {stop}, {lost} lost" in widget.sentence.value
    assert min(seconds) < 0.3, f"two redraws at most, each under 150 ms of CPU time: {seconds}"
    widget.controls["first moment"].value = True
    assert "first moment and buffers lost" in widget.sentence.value
    widget.controls["recipe"].value = "mlp"
    assert "keeps no buffers" in widget.sentence.value and bytes(widget.image.value).startswith(b"\x89PNG")


def test_pictures_are_small_and_their_words_hold_no_measured_value() -> None:
    for figure in (rank(ranked()), seen(SeenPlot({"a": np.ones(5)}, 3))):
        data, metadata = figure._repr_mimebundle_()
        assert len(data["image/png"]) < 60_000 and metadata["image/png"]["alt"] == figure.alt
        assert theme.png(figure)
    assert repr(rank(ranked())) == "[picture: five losses ranked]"
