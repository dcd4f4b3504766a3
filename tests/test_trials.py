"""Trials: verdicts from pairs, runs in fresh processes at equal budget, kept and continued."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit import run
from labkit.errors import ConfigError, ProofError
from labkit.recipe import resolve
from labkit.recipes import find
from labkit.records import read_attempts
from labkit.trials import Trial, Trials, paired, t_95, trials
from labkit.trials.child import Job, key, main, work
from labkit.trials.compare import _stored

TOY = f"{Path(__file__).with_name('toys.py')}:Toy"


# --- verdicts -------------------------------------------------------------------------------------------------------


def test_pairs_show_what_the_spread_of_each_method_hides() -> None:
    seeds = np.arange(5.0)
    first, second = list(10 + seeds), list(10 + seeds - np.array([0.10, 0.12, 0.09, 0.11, 0.10]))
    found = paired(first, second)
    assert (found.verdict, found.wins, found.pairs) == ("better", 5, 5)
    assert found.mean == pytest.approx(-0.104) and found.half_width < 0.02
    assert paired(second, first).verdict == "worse"
    assert paired(first, second, "max").verdict == "worse"  # the same numbers, of an accuracy


def test_a_placebo_that_wins_four_of_five_cannot_be_told() -> None:
    found = paired([1.0, 1.1, 0.9, 1.2, 1.0], [0.98, 1.09, 0.88, 1.15, 1.2])
    assert found.wins == 4 and found.verdict == "cannot tell" and "zero" in str(found)


def test_a_placebo_is_called_better_or_worse_in_about_one_of_twenty_comparisons() -> None:
    generator = np.random.Generator(np.random.PCG64(0))
    wrong = sum(
        paired(*generator.standard_normal((2, 5)).tolist()).verdict != "cannot tell" for _ in range(2000)
    )  # fmt: skip
    assert 0.03 < wrong / 2000 < 0.07


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ([1.0], [0.5], "one pair"),
        ([1.0, math.nan, 1.0], [0.5, 0.5, 0.5], "not finite"),
        ([1.0, 1.0], [math.inf, 1.0], "not finite"),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], "no difference"),
        ([0.5, 0.75], [0.25, 0.5], "no spread"),
    ],
)
def test_what_cannot_be_told_says_why(first: list[float], second: list[float], why: str) -> None:
    found = paired(first, second)
    assert found.verdict == "cannot tell" and why in found.why


def test_the_factor_of_the_interval_is_student_s() -> None:
    assert t_95(1) == 12.706 and t_95(4) == 2.776 and math.isinf(t_95(0))
    assert t_95(31) == pytest.approx(2.0395, abs=1e-3) and t_95(1000) == pytest.approx(1.9623, abs=2e-3)


@pytest.mark.parametrize("lists", [([], []), ([1.0], [1.0, 2.0])])
def test_lists_that_are_no_pairs_are_refused(lists: tuple[list[float], list[float]]) -> None:
    with pytest.raises(ConfigError):
        paired(*lists)
    with pytest.raises(ConfigError, match="min or max"):
        paired([1.0], [1.0], "loss")


def test_pairs_are_matched_by_seed_whatever_order_the_runs_came_in() -> None:
    rows = [Trial(v, s, "", x, 1, 1) for v, s, x in (("a", 1, 5.0), ("b", 0, 1.0), ("a", 0, 2.0), ("b", 1, 4.0))]
    table = Trials("toy", "rate", "loss", "min", "updates=1", tuple(rows))
    assert (table.of("a"), table.of("b")) == ([2.0, 5.0], [1.0, 4.0])
    assert table.verdicts()["b"].mean == -1.0 and table.values() == ["a", "b"]


# --- what is refused before anything runs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"vary": {"rate": [0.1]}}, "two or more"),
        ({"vary": {"rate": [0.1, 0.1]}}, "two or more"),
        ({"vary": {"rate": [0.1, 0.2], "norm": [True, False]}}, "2 settings"),
        ({"vary": {"seed": [1, 2]}}, "seed is varied"),
        ({"vary": {"updates": [1, 2]}}, "updates is varied"),
        ({"vary": {"raet": [1, 2]}}, "rate"),
        ({"vary": {"rate": [0.1, 0.2]}, "seeds": 0}, "seeds"),
        ({"vary": {"rate": [0.1, 0.2]}, "seed": 3}, "seed is set"),
        ({"vary": {"rate": [0.1, 0.2]}, "updates": None}, "ends"),
        ({"vary": {"rate": [0.1, 0.2]}, "metric": "scripted"}, "direction"),
    ],
)
def test_a_comparison_that_means_nothing_is_refused(words: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        trials(TOY, **{"seeds": 2, "updates": 3, "folder": tmp_path, **words})
    assert list(tmp_path.iterdir()) == []


# --- runs (in this process where a fresh one adds nothing) ------------------------------------------------------------


def job(folder: Path, **settings: Any) -> Job:
    return Job(TOY, str(folder), {"rate": 0.01, "seed": 0, **settings})


def result(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "trial.json").read_text()))


def test_the_weights_at_the_end_of_the_budget_are_scored_whatever_the_run_evaluates(tmp_path: Path) -> None:
    for name, settings in (("never", {}), ("often", {"eval_every": 2}), ("rarely", {"eval_every": 5})):
        assert work(job(tmp_path / name, updates=7, **settings)) == 0
    scores = [(result(tmp_path / n)["sum"], result(tmp_path / n)["update"]) for n in ("never", "often", "rarely")]
    assert len(set(scores)) == 1 and scores[0][1] == 7


@pytest.mark.parametrize(("goal", "updates"), [({"tokens": 9}, 5), ({"examples": 7}, 4), ({"epochs": 2}, 12)])
def test_a_budget_may_be_in_tokens_examples_or_epochs(goal: dict[str, int], updates: int, tmp_path: Path) -> None:
    assert work(job(tmp_path / "r", **goal)) == 0
    assert result(tmp_path / "r")["update"] == updates


def test_an_interrupted_run_goes_on_to_the_score_of_a_straight_one(tmp_path: Path) -> None:
    work(job(tmp_path / "straight", updates=8))
    with run.start(TOY, tmp_path / "split", updates=8, rate=0.01, seed=0) as session:
        session.sample(3)
        session.publish()
    assert work(job(tmp_path / "split", updates=8)) == 0
    assert result(tmp_path / "split")["sum"] == result(tmp_path / "straight")["sum"]
    assert [a.status for a in read_attempts(tmp_path / "split")] == ["stopped", "finished"]


def test_a_stored_result_counts_only_for_its_own_settings_and_budget(tmp_path: Path) -> None:
    work(job(tmp_path / "r", updates=4))
    config = resolve(find(TOY), TOY, {"updates": 4, "rate": 0.01})
    assert _stored(tmp_path / "r", config) == result(tmp_path / "r") and result(tmp_path / "r")["key"] == key(config)
    assert _stored(tmp_path / "r", config.changed(updates=5)) is None
    assert _stored(tmp_path / "r", config.changed(rate=0.02)) is None
    (tmp_path / "r" / "trial.json").write_text("{")
    assert _stored(tmp_path / "r", config) is None


def test_runs_in_fresh_processes_are_kept_compared_in_pairs_and_not_run_again(tmp_path: Path) -> None:
    told: list[str] = []
    words: dict[str, Any] = {"vary": {"rate": [0.01, 0.05]}, "seeds": [0, 3], "folder": tmp_path / "t"}
    for value in ("0.01", "0.05"):  # two of four are there already
        assert work(job(tmp_path / f"t/rate-{value}/seed-3", rate=float(value), seed=3, updates=6)) == 0
    found = trials(TOY, **words, updates=6, progress=told.append)
    assert [(t.value, t.seed, t.update) for t in found.trials] == [
        ("0.01", 0, 6), ("0.01", 3, 6), ("0.05", 0, 6), ("0.05", 3, 6),
    ]  # fmt: skip
    assert told[0] == "2 of 4 runs" and told[-1] == "4 of 4 runs"
    firsts = [json.loads((tmp_path / "t" / f"rate-{v}" / "seed-0" / "trajectory.jsonl").read_text().splitlines()[0])
              for v in ("0.01", "0.05")]  # fmt: skip
    assert firsts[0]["indices"] == firsts[1]["indices"] and firsts[0]["loss_sum"] == firsts[1]["loss_sum"]
    begins = [read_attempts(tmp_path / f"t/rate-{v}/seed-0")[0].begin["process"] for v in ("0.01", "0.05")]
    assert begins[0] != begins[1]  # each in a process of its own
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "t").rglob("*.jsonl")}
    assert trials(TOY, **words, updates=6) == found
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "t").rglob("*.jsonl")} == stamps
    assert found.to_dict()["verdicts"]["0.05"]["pairs"] == 2 and "equal budget updates=6" in str(found)
    for other in ({"updates": 5}, {"updates": 6, "momentum": 0.5}, {"epochs": 1}):
        with pytest.raises(ProofError, match="choose another folder"):
            trials(TOY, **words, **other)


def test_a_failing_run_says_why_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(job(tmp_path / "r", updates=30, momentum=0.9, rate=1e30).text()) == 2
    assert capsys.readouterr().err.startswith("NonfiniteError: attempt ")
    assert not (tmp_path / "r" / "trial.json").exists()


@pytest.mark.slow
def test_a_failing_run_is_named_with_its_error(tmp_path: Path) -> None:
    with pytest.raises(ProofError, match="seed-0.*NonfiniteError"):
        trials(TOY, vary={"rate": [1e30, 1e31]}, seeds=1, folder=tmp_path, updates=30, jobs=1, momentum=0.9)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the signal of a terminal's Ctrl-C")
def test_ctrl_c_stops_the_runs_at_a_boundary_and_asking_again_goes_on(tmp_path: Path) -> None:
    words = [
        sys.executable, "-m", "labkit", "trials", TOY, "--vary", "rate=0.01,0.02", "--seeds", "1", "--budget",
        "updates=400", "--folder", str(tmp_path / "t"), "--set", "slow=0.01", "--jobs", "1", "--json",
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    place = tmp_path / "t" / "rate-0.01" / "seed-0"
    until = time.monotonic() + 60
    while not (place / "signals.jsonl").exists() or not (place / "signals.jsonl").stat().st_size:
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    (attempt,) = read_attempts(place)
    assert attempt.status == "stopped" and 0 < attempt.end["measured"]["updates"] < 400
    assert not (tmp_path / "t" / "rate-0.02").exists()
