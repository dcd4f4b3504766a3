"""The covering table: every pair of settings that could disturb a resume, exact at every boundary, chains included."""

from __future__ import annotations

import itertools
from dataclasses import asdict

import pytest
import torch

from labkit import randomness
from labkit.engine import open_engine
from labkit.proof.matrix import FACTORS, Matrix, covering_rows, possible, prove_matrix, row_settings
from labkit.recipe import resolve
from labkit.recipes import find
from labkit.state import cloned, digests

ROWS = covering_rows()


def test_every_possible_pair_of_settings_is_in_some_row():
    for (a, levels_a), (b, levels_b) in itertools.combinations(FACTORS.items(), 2):
        for x, y in itertools.product(levels_a, levels_b):
            if possible({a: x, b: y}):
                assert any(row[a] == x and row[b] == y for row in ROWS), (x, y)


def test_the_table_is_far_smaller_than_all_combinations():
    everything = 1
    for levels in FACTORS.values():
        everything *= len(levels)
    assert len(ROWS) < everything / 20


def followed(engine, until):
    """Every boundary from here on: the record and the digests of every part."""
    lines = []
    with engine.working():
        engine.evaluate_if_due()
        while engine.state.counters.committed < until:
            record = engine.update()
            engine.evaluate_if_due()
            lines.append({**asdict(record), **digests(engine.state.capture())})
    return lines


def slow_on_cpu(row):
    """Convolutions have no fast fp16 kernel on a CPU."""
    return row["recipe"] == "digits conv" and row["precision"].startswith("fp16")


CASES = [
    pytest.param(row, id=", ".join(row.values()), marks=[pytest.mark.slow] if slow_on_cpu(row) else []) for row in ROWS
]


@pytest.mark.parametrize("row", CASES)
def test_a_row_continues_exactly_from_every_boundary(row):
    """In one process: new objects, other global streams, no worker; the fresh processes are `labkit prove --matrix`."""
    name, settings = row_settings(row)
    config = resolve(find(name), name, {**settings, "workers": 0})
    with open_engine(find(name), config) as engine:
        boundaries = [engine.capture()]
        straight = []
        with engine.working():
            while engine.state.counters.committed < config.updates:
                record = engine.update()
                engine.evaluate_if_due()
                straight.append({**asdict(record), **digests(engine.state.capture())})
                boundaries.append(cloned(engine.state.capture()))
    for stop, saved in enumerate(boundaries[:-1]):
        randomness.seed_all("elsewhere", stop)
        torch.rand(3)
        with open_engine(find(name), config) as resumed:
            resumed.restore(saved)
            # by repr: the norm of a gradient that overflowed is nan, and nan is equal to nan here
            assert repr(followed(resumed, config.updates)) == repr(straight[stop:]), f"stopped after {stop}"


def test_negative_control_a_row_without_its_torch_stream_is_not_exact():
    row = next(row for row in ROWS if row["recipe"] == "digits mlp")
    name, settings = row_settings(row)
    config = resolve(find(name), name, {**settings, "workers": 0})
    with open_engine(find(name), config) as engine:
        fresh = engine.capture()
        engine.run(3)
        saved = engine.capture()
        straight = followed(engine, 8)
    saved["rng"]["torch"] = fresh["rng"]["torch"]
    with open_engine(find(name), config) as resumed:
        resumed.restore(saved)
        assert followed(resumed, 8) != straight


@pytest.mark.slow
def test_two_rows_in_fresh_processes_with_workers():
    chosen = [row for row in ROWS if row["workers"] == "2"][:2]
    found = prove_matrix(chosen)
    assert isinstance(found, Matrix) and found.exact, str(found)
    assert all(len(proof.rows) >= 4 for _, proof in found.rows)
