"""Where a run ends and what it cost: budgets across resumes, the profile, time left, qualitative outputs, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from toys import Toy

from labkit import run
from labkit.commands.line import Line, seconds_left
from labkit.config import RunConfig
from labkit.recipe import resolve
from labkit.recipes import find
from labkit.recipes.names import DECODING, PROMPTS, load_names
from labkit.records import columns, read_attempts, read_lines
from labkit.records.pace import Pace
from labkit.records.stages import Stages

TOY = f"{Path(__file__).with_name('toys.py')}:Toy"


def stopped_at(folder: Path, goal: dict[str, Any], *stops: int, **settings: Any) -> run.Session:
    """A run to a goal, stopped after so many attempts on the way, each part in a session of its own."""
    session = run.start(Toy(), folder, **goal, **settings)
    for stop in stops:
        with session:
            for _ in range(stop - session.state.counters.attempted):
                session.attempt()
            session.publish()
        session = run.resume(folder, recipe=Toy())
    with session:
        assert session.train().status == "finished"
    return session


# --- budgets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("goal", "expected"),
    [({"updates": 9}, (9, 18)), ({"examples": 13}, (7, 14)), ({"tokens": 13}, (7, 14)), ({"epochs": 2}, (12, 24))],
)
@pytest.mark.parametrize("stops", [(), (3,), (3, 5)])
def test_counts_of_a_budget_are_exact_across_resumes(
    goal: dict[str, Any], expected: tuple[int, int], stops: tuple[int, ...], tmp_path: Path
) -> None:
    counters = stopped_at(tmp_path / "r", goal, *stops).state.counters
    assert (counters.committed, counters.examples) == expected
    assert len([line for line in read_lines(tmp_path / "r" / "trajectory.jsonl") if "loss_sum" in line]) == expected[0]


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Ticking(Toy):
    """Every training microbatch takes one second of the clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def objective(self, model: Any, batch: Any) -> tuple[torch.Tensor, int]:
        if model.training:
            self.clock.now += 1.0
        return super().objective(model, batch)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for name, module in list(sys.modules.items()):  # every page of labkit.run that reads a clock
        if name.partition(".run")[0] == "labkit" and getattr(module, "time", None) is time:
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=made, time=time.time))
    return made


def test_a_budget_in_seconds_ends_at_the_update_that_spends_it_whatever_it_is_cut_into_k14_04(
    clock: Clock, tmp_path: Path
) -> None:
    with run.start(Ticking(clock), tmp_path / "r", seconds=100.0, microbatch_size=1) as session:
        outcome = session.train()
    assert (outcome.update, session.seconds_used) == (50, 100.0) and outcome.reason == "target reached: seconds=100"


def test_seconds_add_up_over_resumes_and_leave_the_pauses_out_k13_02(clock: Clock, tmp_path: Path) -> None:
    with run.start(Ticking(clock), tmp_path / "r", updates=10) as session:
        clock.now += 500  # the session is open, nobody trains
        session.train()
        assert session.seconds_used == 10.0
        clock.now += 500
    clock.now += 5000
    with run.resume(tmp_path / "r", recipe=Ticking(clock), updates=None, seconds=25.0) as session:
        session.train()
    assert (session.update, session.seconds_used) == (25, 25.0)
    ends = [attempt.end["measured"] for attempt in read_attempts(tmp_path / "r")]
    assert [(end["seconds"], end["seconds_used"]) for end in ends] == [(10.0, 10.0), (15.0, 25.0)]


def forget_the_end(folder: Path) -> None:
    """Take the entry away that a process writes when it ends in an orderly way."""
    lines = (folder / "attempts.jsonl").read_text().splitlines(keepends=True)
    assert '"kind":"end"' in lines[-1]
    (folder / "attempts.jsonl").write_text("".join(lines[:-1]))


def test_what_a_kill_lost_stays_counted_and_is_said(clock: Clock, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with run.start(Ticking(clock), folder, updates=20, save_every=5, signals_every=1) as session:
        for _ in range(9):
            session.attempt()
    forget_the_end(folder)  # killed, as far as the folder knows: update 5 is saved, the records reach to update 9
    with run.resume(folder, recipe=Ticking(clock)) as session:
        assert session.update == 5 and session.seconds_used == 9.0
        assert any("update 5 is made again" in notice and "4 s stay counted" in notice for notice in session.notices)
        session.train()
    assert session.update == 20 and session.seconds_used == 9.0 + 15.0
    cut = read_attempts(folder)[-1].remarks[-1]
    assert (cut["what"], cut["lines"], cut["lost_seconds"]) == ("trajectory cut", 4, 4.0)


def test_slow_attempts_leave_a_line_of_signals_each_so_little_is_unknown_after_a_kill(
    clock: Clock, tmp_path: Path
) -> None:
    with run.start(Ticking(clock), tmp_path / "r", updates=14, signals_every=100) as session:
        session.train()
    assert [line["update"] for line in read_lines(tmp_path / "r" / "signals.jsonl")] == [5, 10]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_budget_in_seconds_holds_over_a_real_kill(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "labkit"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    options = ["--set", "slow=0.02", "save_every=20", "signals_every=1"]
    train = [*words, "train", TOY, "--run", str(tmp_path / "r"), "--seconds", "6", *options]
    process = subprocess.Popen(train, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (tmp_path / "r" / "checkpoints" / "update-000000020").exists():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(1.5)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = subprocess.run([*words, "resume", str(tmp_path / "r"), "--json"], env=env, capture_output=True, text=True)
    told = json.loads(done.stdout)
    assert told["reason"] == "target reached: seconds=6" and 6 <= told["seconds_used"] < 6.5
    trained = 0.04 * told["update"]  # the updates that count took at least so long; the lost ones are paid for too
    assert trained <= told["seconds_used"]


# --- time left ------------------------------------------------------------------------------------------------------


def pace(clock: Clock, **before: Any) -> Pace:
    made = Pace(**before, clock=clock)
    for _ in range(11):
        clock.now += 6.0
        made.add(examples=4, tokens=10)
    return made


def test_time_left_is_that_of_the_first_goal_at_this_segment_s_pace_k14_01_k14_06() -> None:
    made = pace(Clock(), updates=900, examples=3600, tokens=9000, seconds=60.0)

    def left(**goals: Any) -> float | None:
        return seconds_left(made, RunConfig(recipe="toy", **goals), length=100)

    assert left(updates=1001) == pytest.approx(540.0)  # 90 to go, 6 s each: not the 6 s of 966 s over 911 updates
    assert left(examples=4000) == pytest.approx(534.0) and left(tokens=9200) == pytest.approx(54.0)
    assert left(epochs=37) == pytest.approx(84.0)  # 3,700 examples, 3,644 done
    assert left(seconds=226.0) == pytest.approx(100.0)
    assert left(updates=1001, tokens=9200, seconds=226.0) == pytest.approx(54.0)
    assert left(updates=10) == 0.0


def test_time_left_is_unknown_until_this_segment_has_a_pace() -> None:
    fresh = Pace(updates=900, clock=Clock())
    assert seconds_left(fresh, RunConfig(recipe="toy", updates=1000), 100) is None
    assert seconds_left(fresh, RunConfig(recipe="toy", updates=900), 100) == 0.0


def test_the_line_shows_loss_pace_and_time_left_and_is_not_drawn_at_every_update(tmp_path: Path) -> None:
    drawn: list[str] = []
    bar = SimpleNamespace(n=0, set_postfix_str=lambda text, refresh: drawn.append(text), update=lambda n: None)
    with run.start(Toy(), tmp_path / "r", updates=40) as session:
        session.watch = line = Line(session, bar)
        session.train()
    assert line.pace.total("updates") == 40 and line.pace.total("examples") == 80
    assert 1 <= len(drawn) < 40 and drawn[0].startswith("loss ") and drawn[0].endswith("time left unknown")


# --- profile --------------------------------------------------------------------------------------------------------


def test_the_profile_sums_to_the_wall_time_within_five_percent_and_states_its_own_overhead(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"eval_every": 10, "save_every": 20, "ema_decay": 0.9, "slow": 0.002, "slow_eval": 0.002}
    with run.start(Toy(), tmp_path / "r", updates=60, profile=True, signals_every=7, **settings) as session:
        before = session.profile
        start = time.perf_counter()
        session.train()
        wall = time.perf_counter() - start
    found = session.profile
    assert found is not None and before is not None  # the checkpoint of update 0 was made before the clock here began
    assert sum(found.seconds.values()) - sum(before.seconds.values()) == pytest.approx(wall, rel=0.05)
    assert sum(found.seconds.values()) == pytest.approx(found.wall, rel=1e-6)
    stages = {"data", "transfer", "forward", "backward", "measure", "optimizer", "ema", "record"}
    stages |= {"evaluation", "publish"}
    assert stages <= set(found.seconds) and all(found.seconds[name] > 0 for name in stages)
    assert found.seconds["data"] >= 60 * 2 * 0.002 and found.seconds["evaluation"] >= 6 * 10 * 0.002
    assert 0 < found.overhead < 0.05 * found.wall
    recorded = [line["stage_seconds"] for line in read_lines(tmp_path / "r" / "signals.jsonl")]
    assert len(recorded) == 8 and sum(map(lambda line: sum(line.values()), recorded)) <= found.wall
    assert read_attempts(tmp_path / "r")[0].end["measured"]["stage_seconds"] == found.seconds


def test_time_between_calls_belongs_to_no_stage(tmp_path: Path) -> None:
    with run.start(Toy(), tmp_path / "r", updates=5, profile=True) as session:
        time.sleep(0.5)
        session.train()
        time.sleep(0.5)
        session.publish()
    assert session.profile is not None and session.profile.wall == pytest.approx(session.seconds_used, rel=0.05)
    assert session.profile.seconds.get("other", 0.0) < 0.1


def test_nothing_is_measured_when_the_profile_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> float:
        raise AssertionError("a clock was read")

    monkeypatch.setattr("labkit.records.stages.time", SimpleNamespace(perf_counter=refuse))
    with run.start(Toy(), tmp_path / "r", updates=5) as session:
        session.train()
    assert session.profile is None and Stages().take().seconds == {}
    assert all("stage_seconds" not in line for line in read_lines(tmp_path / "r" / "signals.jsonl"))


def test_a_profiled_run_is_the_same_run(tmp_path: Path) -> None:
    lines = []
    for profile in (False, True):
        with run.start(Toy(), tmp_path / str(profile), updates=12, profile=profile, eval_every=4) as session:
            session.train()
        lines.append((tmp_path / str(profile) / "trajectory.jsonl").read_text())
    assert lines[0] == lines[1]


# --- signals and qualitative outputs ----------------------------------------------------------------------------------


class Counting(Toy):
    """Says what it counts in its data."""

    def tally(self, batch: Any) -> dict[str, int]:
        indices, _, _ = batch
        return {"even": int((indices % 2 == 0).sum()), "truncated": int((indices > 9).sum())}


def test_every_signal_a_practitioner_needs_is_there_with_its_unit_in_the_name(tmp_path: Path) -> None:
    with run.start(Counting(), tmp_path / "r", updates=12, eval_every=6, norm_every=1, max_norm=0.1, signals_every=4,
                   uneven=True) as session:  # fmt: skip
        session.train()
    attempts = columns(tmp_path / "r" / "trajectory.jsonl", having="loss_sum")
    for name in ("loss_sum", "loss_count", "rates_used.0", "rates_next.0", "grad_norm", "clipped", "update_norm",
                 "tokens", "examples", "skipped", "tally.even", "tally.truncated"):  # fmt: skip
        assert len(attempts[name]) == 12, name
    assert attempts["tally.even"].sum() == 12 and attempts["tally.truncated"].sum() == 4  # two epochs of 12 examples
    assert attempts["tokens"][-1] == attempts["loss_count"].sum()
    evaluations = columns(tmp_path / "r" / "trajectory.jsonl", having="validation")
    assert list(evaluations["validation.loss.1"]) == [10, 10]
    signals = columns(tmp_path / "r" / "signals.jsonl")
    for name in ("seconds", "examples_per_second", "tokens_per_second", "peak_memory_bytes", "tally.even"):
        assert len(signals[name]) == 3 and (signals[name] > 0).all(), name
    assert signals["tally.even"].sum() == 12


def test_rates_are_those_of_the_time_at_work(clock: Clock, tmp_path: Path) -> None:
    with run.start(Ticking(clock), tmp_path / "r", updates=None, seconds=1e9, signals_every=2) as session:
        session.sample(2)
        clock.now += 1000  # a pause in a notebook
        session.sample(2)
    assert [line["examples_per_second"] for line in read_lines(tmp_path / "r" / "signals.jsonl")] == [2.0, 2.0]


def test_samples_are_stored_at_each_evaluation_with_prompt_reference_seed_and_decoding(tmp_path: Path) -> None:
    with run.start("names", tmp_path / "r", updates=6, eval_every=2, samples_every=1) as session:
        session.train()
    lines = read_lines(tmp_path / "r" / "samples.jsonl").records
    assert [line["update"] for line in lines] == [u for u in (2, 4, 6) for _ in PROMPTS]
    held_out = set(load_names("validation"))
    for number, line in enumerate(lines):
        prompt = PROMPTS[number % len(PROMPTS)]
        assert (line["prompt"], line["seed"], line["decoding"]) == (prompt, number % len(PROMPTS), DECODING)
        assert line["output"].startswith(prompt) and line["reference"].startswith(prompt)
        assert line["reference"] in held_out


def test_the_same_weights_give_the_same_samples_and_training_goes_on_as_if_none_were_drawn(tmp_path: Path) -> None:
    for every in (0, 1, 2):
        with run.start("names", tmp_path / str(every), updates=8, eval_every=2, samples_every=every) as session:
            session.train()
    trajectories = [(tmp_path / str(every) / "trajectory.jsonl").read_text() for every in (0, 1, 2)]
    assert trajectories[0] == trajectories[1] == trajectories[2]
    assert not (tmp_path / "0" / "samples.jsonl").exists()
    often, seldom = (read_lines(tmp_path / name / "samples.jsonl").records for name in ("1", "2"))
    assert [line for line in often if line["update"] in (4, 8)] == seldom


def test_samples_draw_from_their_own_seeds_and_move_no_stream_of_the_process() -> None:
    recipe = find("names")
    config = resolve(recipe, "names", {"updates": 1})
    model = recipe.model(config)
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        found.append(recipe.samples(model, config))
        assert torch.equal(torch.get_rng_state(), before)
    assert found[0] == found[1] and len(found[0]) == len(PROMPTS)


def test_samples_of_a_lost_tail_are_made_again_and_stand_once(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with run.start("names", folder, updates=4, eval_every=2, samples_every=1) as session:
        session.train()
    with run.resume(folder, updates=8) as session:
        for _ in range(3):
            session.attempt()
        session.boundary()
    forget_the_end(folder)
    for path in list((folder / "checkpoints").iterdir()):
        if path.name > "update-000000004":
            path.rename(tmp_path / path.name)  # as if the process had died before it was there
    with run.resume(folder) as session:
        session.train()
    lines = read_lines(folder / "samples.jsonl").records
    assert [line["update"] for line in lines] == [u for u in (2, 4, 6, 8) for _ in PROMPTS]
