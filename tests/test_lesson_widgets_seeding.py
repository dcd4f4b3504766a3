"""Promises of lesson 02's data sets and of the script behind its widget; every row was really run."""

from __future__ import annotations

import multiprocessing
import pickle
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from labkit import lab, randomness
from labkit.lab import demo_data as demo
from labkit.lab import plots

TORCH, NUMPY, PYTHON, PRIVATE, OWN = demo.SOURCES
SHARED, INSIDE, KEYED = demo.SCRIPTS
FORK = "fork" in multiprocessing.get_all_start_methods()


def firsts(script: str, source: str, draws: int = 2, after: int = 10, workers: int = 0) -> dict[str, int]:
    """Row -> first update that differs, for the rows that do."""
    equal = demo.equal_rows(script, source, draws, after, workers)
    assert equal.shape == (len(demo.ROWS), demo.LAST)
    return {row: 1 + int(np.argmin(e)) for row, e in zip(demo.ROWS, equal, strict=True) if not e.all()}


def test_no_draw_changes_nothing():
    assert all(firsts(script, source, draws=0) == {} for script in demo.SCRIPTS for source in demo.SOURCES)


def test_a_draw_from_torch_shifts_masks_at_once_and_a_drawn_order_at_the_next_epoch():
    changed = {"dropout masks": 11, "trained weights": 11}
    assert firsts(SHARED, TORCH) == firsts(INSIDE, TORCH) == {**changed, "order": 21}
    assert firsts(KEYED, TORCH) == changed
    before = firsts(SHARED, TORCH, after=0)
    assert before == {row: 1 for row in demo.ROWS if row != "augmentation"}


def test_augmentation_follows_the_stream_that_it_draws_from_and_no_other():
    changed = {"augmentation": 11, "trained weights": 11}
    assert firsts(SHARED, NUMPY) == firsts(INSIDE, OWN) == changed
    assert firsts(INSIDE, NUMPY) == firsts(SHARED, OWN) == firsts(KEYED, NUMPY) == firsts(KEYED, OWN) == {}
    assert all(firsts(script, source) == {} for script in demo.SCRIPTS for source in (PYTHON, PRIVATE))


def test_with_two_workers_the_change_waits_for_the_next_epoch():
    assert firsts(SHARED, NUMPY, workers=2) == {}
    assert firsts(INSIDE, OWN, workers=2) == {"augmentation": 21, "trained weights": 21}


@pytest.mark.slow
@pytest.mark.skipif(not FORK, reason="quick worker processes need the start method fork")
@pytest.mark.parametrize("after", [0, 10])
@pytest.mark.parametrize("script", demo.SCRIPTS)
def test_what_is_recorded_of_two_workers_is_what_real_workers_do(script, after):
    plain = demo.worker_noise(script, TORCH, 0, after, "fork")
    for source in demo.SOURCES:
        drunk = demo.worker_noise(script, source, 1, after, "fork")
        first = next((n for n, (a, b) in enumerate(zip(plain, drunk, strict=True), 1) if a != b), None)
        assert first == demo.FROM_WORKERS.get((script, source, after)), source


def test_following_the_script_leaves_the_callers_streams_alone():
    before = randomness.capture()
    demo.equal_rows(SHARED, TORCH, 3, 10)
    assert randomness.differences(before, randomness.capture()) == []


def test_moving_a_control_redraws_within_the_time_of_a_blink():
    def drawn(**settings):
        return plots.StreamsPlot(
            settings["source"], settings["draws"], 10, demo.ROWS, 1, demo.equal_rows(after=10, **settings)
        )

    widget = lab.Explorer(
        {
            "draws": lab.slider("extra draws", range(6), 2),
            "source": lab.choice("drawn from", demo.SOURCES),
            "script": lab.choice("the script has", demo.SCRIPTS),
        },
        lambda **settings: plots.streams(drawn(**settings)),
        lambda **settings: plots.streams_sentence(drawn(**settings)),
    )
    took = []
    for control, value in (("draws", 3), ("script", KEYED), ("draws", 4)):
        start = time.process_time()
        widget.controls[control].value = value
        took.append(time.process_time() - start)
    assert min(took) < 0.15 and widget.trouble.value == ""
    assert "order equal, dropout masks different from update 11" in widget.sentence.value


def columns(dataset: demo.Noises, workers: int, method: str | None = None) -> dict[str, torch.Tensor]:
    loader = DataLoader(
        dataset, 2, num_workers=workers, multiprocessing_context=method, worker_init_fn=demo.seed_worker,
        generator=torch.Generator().manual_seed(dataset.epoch),
    )  # fmt: skip
    batches = list(loader)
    return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}


@pytest.mark.skipif(not FORK, reason="quick worker processes need the start method fork")
def test_a_generator_kept_in_the_data_set_repeats_in_each_worker_and_epoch_and_keys_do_not():
    noises = demo.Noises()
    alone = columns(demo.Noises(), 0)
    first = columns(noises, 2, "fork")
    noises.epoch = 1
    second = columns(noises, 2, "fork")
    workers = [first["kept"][first["worker"] == worker] for worker in (0, 1)]
    assert torch.equal(*workers) and torch.equal(first["kept"], second["kept"])
    assert torch.equal(alone["keyed"], first["keyed"]) and not torch.equal(first["keyed"], second["keyed"])
    assert torch.equal(alone["index"], first["index"])


def test_the_worker_initialiser_can_be_sent_and_seeds_python_and_numpy_from_torch():
    assert pickle.loads(pickle.dumps(demo.seed_worker)) is demo.seed_worker
    with randomness.preserved():
        drawn = []
        for _ in range(2):
            torch.manual_seed(5)
            demo.seed_worker(0)
            drawn.append((np.random.random(), demo.random.random()))
        assert drawn[0] == drawn[1]
