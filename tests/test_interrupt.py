"""Told to stop: at a boundary, with a checkpoint, from wherever it was said; never a torn state on disk.

Signals are raised in this process where the place matters, and sent to the process group of a child where the group
matters.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from stops import contents, differing, split, straight
from torch import Tensor, nn
from toys import Toy

from labkit import run
from labkit.config import RunConfig
from labkit.engine import open_engine
from labkit.errors import IdentityError, TornStateError
from labkit.interrupt import Wishes, listening
from labkit.loading import WorkerError
from labkit.recipe import resolve
from labkit.records import read_attempts, read_lines
from labkit.run import verify
from labkit.state import Saved, digests

ROOT = Path(__file__).resolve().parents[1]
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="process groups and SIGUSR1 are POSIX")


def manifest(folder: Path, update: int) -> dict[str, Any]:
    path = folder / "checkpoints" / f"update-{update:09d}" / "manifest.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def gold(updates: int, **settings: Any) -> Saved:
    return straight(Toy, updates, **settings)[0]


def finished_like_gold(folder: Path, updates: int = 12, **settings: Any) -> None:
    """Go on to the target: it must be the unbroken run."""
    with run.resume(folder, recipe=Toy(), updates=updates) as session:
        assert session.train().status == "finished"
        assert differing(gold(updates, **settings), session.capture()) == []


class Pressing(Toy):
    """Raises a signal in this process at chosen places: {"forward": 4} at the fourth training microbatch."""

    def __init__(self, number: int = signal.SIGINT, **places: int) -> None:
        super().__init__()
        self.number, self.places, self.scored = number, places, 0

    def press(self, place: str, count: int) -> None:
        if self.places.get(place) == count:
            signal.raise_signal(self.number)

    def objective(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        summed, count = super().objective(model, batch)
        if model.training:
            self.press("forward", len(self.seen))
        return summed, count

    def metrics(self, model: nn.Module, batch: Any) -> Any:
        if self.seen:
            self.scored += 1
            self.press("evaluation", self.scored)
        return super().metrics(model, batch)

    def optimizer(self, config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
        outer = self

        class Sgd(torch.optim.Optimizer):
            """One parameter after the other, with a signal after the first."""

            def __init__(self, parameters: Any) -> None:
                super().__init__(parameters, {"lr": config.rate})
                self.moves = 0

            @torch.no_grad()
            def step(self, closure: Any = None) -> None:  # type: ignore[override]
                self.moves += 1
                for place, parameter in enumerate(self.param_groups[0]["params"]):
                    parameter -= self.param_groups[0]["lr"] * parameter.grad
                    if place == 0:
                        outer.press("optimizer", self.moves)

        return Sgd(model.parameters()) if "optimizer" in self.places else super().optimizer(config, model)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_K12_01_a_signal_inside_the_optimizer_lets_the_update_finish(number: int, tmp_path: Path) -> None:
    with run.start(Pressing(number, optimizer=4), tmp_path / "r", updates=12) as session:
        outcome = session.train()
        assert (outcome.status, outcome.reason, outcome.update) == ("stopped", signal.Signals(number).name, 4)
    never = straight(lambda: Pressing(number, optimizer=99), 12)[0]
    with run.resume(tmp_path / "r", recipe=Pressing(number, optimizer=99)) as session:
        session.train()
        assert differing(never, session.capture()) == []


@pytest.mark.parametrize("place", ["forward", "evaluation"])
def test_a_second_press_raises_at_once_and_the_newest_checkpoint_stands(place: str, tmp_path: Path) -> None:
    class Twice(Pressing):
        def press(self, place: str, count: int) -> None:
            super().press(place, count)
            super().press(place, count)

    with run.start(Twice(**{place: 5}), tmp_path / "r", updates=12, save_every=2, eval_every=1) as session:
        with pytest.raises(KeyboardInterrupt, match="second request"):
            session.train()
        if place == "forward":
            with pytest.raises(TornStateError):
                session.publish()
            with pytest.raises(TornStateError):
                session.train()
    assert [attempt.status for attempt in read_attempts(tmp_path / "r")] == ["interrupted"]
    assert all(checked.reason is None for checked in verify(tmp_path / "r"))
    finished_like_gold(tmp_path / "r", eval_every=1)


def test_K12_02_a_run_outside_the_main_thread_installs_nothing_and_stops_by_request(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    during: list[Any] = []
    with run.start(Toy(), tmp_path / "r", updates=12) as session:
        session.observers.append(lambda record: during.append([signal.getsignal(number) for number in SIGNALS]))
        session.observers.append(lambda record: session.request_stop("from elsewhere") if record.update == 4 else None)
        outcomes: list[Any] = []
        thread = threading.Thread(target=lambda: outcomes.append(session.train()))
        thread.start()
        thread.join(120)
        assert (outcomes[0].status, outcomes[0].reason, outcomes[0].update) == ("stopped", "from elsewhere", 4)
        assert sum("main thread" in text for text in session.notices) == 1
    assert during[0] == before == [signal.getsignal(number) for number in SIGNALS]
    finished_like_gold(tmp_path / "r")


def test_K12_03_a_worker_that_was_killed_costs_no_update(tmp_path: Path) -> None:
    settings = {"updates": 40, "workers": 2, "start_method": "fork", "n": 80}
    with run.start(Toy(), tmp_path / "r", **settings) as session:

        def kill(record: Any) -> None:
            if record.update == 5:
                os.kill(session.engine._feed._crew._processes[0].pid, signal.SIGKILL)

        session.observers.append(kill)
        with pytest.raises(WorkerError, match="SIGKILL"):
            session.train()
        reached = session.update
    assert 5 <= reached < 40 and manifest(tmp_path / "r", reached)["facts"]["reason"] == "worker died"
    finished_like_gold(tmp_path / "r", 40, n=80)


def test_K12_04_an_evaluation_hears_a_signal_within_a_batch_and_is_done_again(tmp_path: Path) -> None:
    settings = {"eval_every": 3, "eval_batch_size": 1}
    recipe = Pressing(signal.SIGTERM, evaluation=2)
    with run.start(recipe, tmp_path / "r", updates=12, **settings) as session:
        outcome = session.train()
        assert (outcome.status, outcome.reason, outcome.update) == ("stopped", "SIGTERM", 3)
        assert recipe.scored == 2 and session.state.counters.evaluations == 0
    assert manifest(tmp_path / "r", 3)["facts"]["counters"]["evaluated_update"] == 0
    finished_like_gold(tmp_path / "r", **settings)
    lines = read_lines(tmp_path / "r" / "trajectory.jsonl").records
    assert [line["update"] for line in lines if "validation" in line] == [3, 6, 9, 12]


WORSENING = {"eval_every": 3, "eval_batch_size": 1, "metric": "scripted", "mode": "max", "script": "9,8,7,6,5,4,3"}


def test_an_evaluation_cut_short_at_the_target_is_owed_not_forgotten(tmp_path: Path) -> None:
    settings = WORSENING  # so that no best one asks for a checkpoint
    recipe = Pressing(signal.SIGINT, evaluation=12)  # ten batches at update 3, the second one at update 6
    with run.start(recipe, tmp_path / "r", updates=6, **settings) as session:
        outcome = session.train()
        assert (outcome.status, outcome.update, session.state.counters.evaluations) == ("stopped", 6, 1)
    finished_like_gold(tmp_path / "r", 6, **settings)
    with run.resume(tmp_path / "r", recipe=Toy()) as session:
        assert session.state.counters.evaluations == 2  # it is in the checkpoint now
        assert session.train().updates_done == 0


def test_an_evaluation_that_no_checkpoint_knows_is_recorded_once(tmp_path: Path) -> None:
    """Cut short and saved, made after a resume, lost again by a kill, made once more: one line."""
    settings = WORSENING
    with run.start(Pressing(signal.SIGINT, evaluation=12), tmp_path / "r", updates=9, **settings) as session:
        assert session.train().update == 6
    shutil.copytree(tmp_path / "r", tmp_path / "before")
    with run.resume(tmp_path / "r", recipe=Toy(), updates=6) as session:
        session.train()
    shutil.rmtree(tmp_path / "r" / "checkpoints")
    shutil.copytree(tmp_path / "before" / "checkpoints", tmp_path / "r" / "checkpoints")
    with run.resume(tmp_path / "r", recipe=Toy(), updates=9) as session:
        session.train()
    lines = read_lines(tmp_path / "r" / "trajectory.jsonl").records
    assert [line["update"] for line in lines if "validation" in line] == [3, 6, 9]


def fails(recipe: Toy, folder: Path) -> None:
    class Broken(Toy):
        def objective(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
            if model.training:
                raise ZeroDivisionError("mine")
            return super().objective(model, batch)

    with pytest.raises(ZeroDivisionError), run.start(Broken(), folder, updates=3) as session:
        session.train()


def finishes(recipe: Toy, folder: Path) -> None:
    split(folder, Toy, 3)


def stops(recipe: Toy, folder: Path) -> None:
    with run.start(Pressing(forward=2), folder, updates=9) as session:
        assert session.train().status == "stopped"


def stops_early(recipe: Toy, folder: Path) -> None:
    settings = {"metric": "scripted", "mode": "min", "script": "1,2,3,4", "eval_every": 1, "patience": 1}
    with run.start(Toy(), folder, updates=9, **settings) as session:
        assert session.train().status == "early stopped"


def is_refused(recipe: Toy, folder: Path) -> None:
    split(folder, Toy, 3)
    with pytest.raises(IdentityError):
        run.resume(folder, recipe=Toy(), rate=0.5)


def is_interrupted(recipe: Toy, folder: Path) -> None:
    class Twice(Pressing):
        def press(self, place: str, count: int) -> None:
            super().press(place, count)
            super().press(place, count)

    with pytest.raises(KeyboardInterrupt), run.start(Twice(forward=2), folder, updates=9) as session:
        session.train()


@pytest.mark.parametrize("end", [finishes, fails, stops, stops_early, is_refused, is_interrupted])
def test_K12_06_handlers_are_put_back_however_it_ends(end: Callable[[Toy, Path], None], tmp_path: Path) -> None:
    mine = {number: (lambda number, frame: None) for number in SIGNALS}
    before = {number: signal.signal(number, handler) for number, handler in mine.items()}
    try:
        end(Toy(), tmp_path / "r")
        assert {number: signal.getsignal(number) for number in SIGNALS} == mine
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_K12_08_the_checkpoint_of_a_signal_knows_its_place_and_its_reason(tmp_path: Path) -> None:
    with run.start(Pressing(forward=9), tmp_path / "r", updates=18, save_epoch_end=True, keep=9) as session:
        assert session.train().update == 9
    facts = manifest(tmp_path / "r", 9)["facts"]
    assert facts["reason"] == "signal" and manifest(tmp_path / "r", 6)["facts"]["reason"] == "epoch end"
    before = contents(tmp_path / "r" / "checkpoints" / "update-000000006")
    recipe = Toy()
    with run.resume(tmp_path / "r", recipe=recipe, updates=12) as session:
        session.train()
    assert len(recipe.seen) == 3 and contents(tmp_path / "r" / "checkpoints" / "update-000000006") == before
    finished_like_gold(tmp_path / "r", 18)


def test_a_press_while_a_checkpoint_is_written_comes_out_as_what_it_is(tmp_path: Path, monkeypatch: Any) -> None:
    """Torch, closing an archive that was cut short, raises an error of its own over the one that cut it."""
    from labkit.files import HashingWriter

    whole = HashingWriter.write
    written: list[int] = []

    def pressed(self: Any, data: Any) -> int:
        written.append(len(data))
        if len(written) == 5:
            signal.raise_signal(signal.SIGINT)
        return whole(self, data)

    with run.start(Pressing(forward=3), tmp_path / "r", updates=9) as session:
        monkeypatch.setattr(HashingWriter, "write", pressed)
        with pytest.raises(KeyboardInterrupt, match="second request"):
            session.train()
    assert [path.name for path in (tmp_path / "r" / "checkpoints").iterdir()] == ["update-000000000"]
    monkeypatch.setattr(HashingWriter, "write", whole)
    finished_like_gold(tmp_path / "r", 9)


def test_a_best_checkpoint_at_the_boundary_of_a_signal_is_found_again(tmp_path: Path) -> None:
    with run.start(Pressing(forward=3), tmp_path / "r", updates=12, eval_every=3) as session:
        assert session.train().update == 3
    finished_like_gold(tmp_path / "r", eval_every=3)


def test_K12_09_an_early_stop_ends_cleanly_with_nothing_to_sum_up(tmp_path: Path) -> None:
    with run.start(Toy(), tmp_path / "at 0", updates=9, eval_every=3) as session:
        session.request_stop("at once")
        outcome = session.train()
        assert (outcome.status, outcome.update, session.totals) == ("stopped", 0, {})
    with run.start(Pressing(forward=1), tmp_path / "first batch", updates=9, eval_every=3) as session:
        assert session.train().update == 1

    class Slow(Toy):
        def model(self, config: RunConfig) -> nn.Module:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.start(Slow(), tmp_path / "set-up", updates=9)
    assert not (tmp_path / "set-up").exists()
    for name in ("at 0", "first batch"):
        assert [attempt.status for attempt in read_attempts(tmp_path / name)] == ["stopped"]
        finished_like_gold(tmp_path / name, 9, eval_every=3)


def test_a_signal_that_asks_for_a_checkpoint_does_not_stop(tmp_path: Path) -> None:
    with run.start(Pressing(signal.SIGUSR1, forward=4), tmp_path / "r", updates=9) as session:
        assert session.train().status == "finished"
    assert manifest(tmp_path / "r", 4)["facts"]["reason"] == "asked"


def test_wishes_keep_the_first_reason() -> None:
    wishes = Wishes()
    with listening(wishes) as heard:
        assert heard
        signal.raise_signal(signal.SIGTERM)
        wishes.request_stop("later")
        assert wishes.stop == "SIGTERM"
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
            signal.raise_signal(signal.SIGINT)


# --- children --------------------------------------------------------------------------------------------------------


@contextmanager
def child(body: str) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own that runs the body; killed at the end, whatever became of it."""
    code = (
        "import os, signal, sys, time\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"    sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}]\n"
        "    from pathlib import Path\n"
        "    from toys import Toy\n"
        "    from labkit import run\n"
        "    def say(*words): print(*words, flush=True)\n" + "".join(f"    {line}\n" for line in body.splitlines())
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def heard(process: subprocess.Popen[str], word: str) -> list[str]:
    """Words of the first line that begins with `word`."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.split()[:1] == [word]:
            return line.split()
    raise AssertionError(f"the child ended without {word!r}: {process.stderr.read() if process.stderr else ''}")


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for_the_group(process: subprocess.Popen[str], seconds: float = 60.0) -> int:
    """Exit status, once every process of the group is gone."""
    status = process.wait(seconds)
    end = time.monotonic() + 15
    while alive(process.pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive(process.pid), "processes were left behind"
    return status


WITH_WORKERS = """
with run.start(Toy(), {folder!r}, updates=4000, n=80, workers=2, start_method={method!r}, jitter=True) as session:
    session.observers.append(lambda record: say("update", record.update) if record.update == 5 else None)
    outcome = session.train()
    say("outcome", outcome.status, outcome.reason, outcome.update)
"""


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_K12_03_a_signal_to_the_whole_group_reaches_the_boundary(method: str, number: int, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with child(WITH_WORKERS.format(folder=str(folder), method=method)) as process:
        heard(process, "update")
        os.killpg(process.pid, number)
        _, status, reason, update = heard(process, "outcome")
        assert (status, reason) == ("stopped", signal.Signals(number).name)
        assert wait_for_the_group(process) == 0
    assert manifest(folder, int(update))["facts"]["reason"] == "signal"
    recipe = Toy()
    with run.resume(folder, recipe=recipe, updates=int(update) + 3, workers=0) as session:
        session.train()
        assert differing(gold(int(update) + 3, n=80, jitter=True), session.capture()) == []


PATIENCE = """
from labkit.checkpoint import CheckpointStore
from labkit.errors import LabkitError
import labkit.checkpoint.store as store
whole = store.write_state
def slow(*rest):
    found = whole(*rest)
    if session is not None:
        say("saving", session.update)
        for _ in range(100):
            time.sleep(0.05)
    return found
session = None
store.write_state = slow
try:
    opened = run.start(Toy(), {folder!r}, updates=4000)
    with opened:
        session = opened
        session.observers.append(lambda record: say("update", record.update) if record.update == 4 else None)
        session.train()
except KeyboardInterrupt:
    say("interrupted", session.update)
    sys.exit(130)
"""


def test_K12_05_an_impatient_second_and_third_press_leave_a_good_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with child(PATIENCE.format(folder=str(folder))) as process:
        heard(process, "update")
        os.killpg(process.pid, signal.SIGINT)
        heard(process, "saving")
        os.killpg(process.pid, signal.SIGINT)
        assert int(heard(process, "interrupted")[1]) >= 4
        assert wait_for_the_group(process) == 130
    with run.resume(folder, recipe=Toy(), updates=6) as session:
        assert session.update == 0  # the save that was under way counts for nothing
        session.train()
        assert differing(gold(6), session.capture()) == []
    names = [path.name for path in (folder / "checkpoints").iterdir()]
    assert sorted(names) == ["update-000000000", "update-000000006"]


COMMAND = """
from labkit.__main__ import main
sys.exit(main(["train", {recipe!r}, "--run", {folder!r}, "--updates", "100000", "--set", "slow=0.01"]))
"""


def test_K12_09_the_command_line_ends_quietly_with_status_3(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with child(COMMAND.format(recipe=f"{ROOT}/tests/toys.py:Toy", folder=str(folder))) as process:
        end = time.monotonic() + 120
        while not (folder / "config.json").exists() and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)
        assert wait_for_the_group(process) in (3, 130)
        assert process.stderr is not None and process.stdout is not None
        words, errors = process.stdout.read(), process.stderr.read()
    assert "Traceback" not in errors
    if process.returncode == 3:
        assert "stopped" in words and "labkit resume" in words
    assert all(checked.reason is None for checked in verify(folder))


# --- at random -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # between open() and the next line
def test_K12_01_whatever_200_signals_interrupt_every_saved_state_is_one_of_the_unbroken_run(tmp_path: Path) -> None:
    updates, settings = 12, {"eval_every": 2, "ema_decay": 0.9, "save_every": 3, "jitter": True}
    recipe = Toy()
    expected = {}
    with open_engine(recipe, resolve(recipe, "object:toys.Toy", {"updates": updates, **settings})) as engine:
        expected[0] = digests(engine.capture())
        for update in range(1, updates + 1):
            engine.run(update)
            expected[update] = digests(engine.capture())
    rng, late = random.Random(0), []
    outer = signal.signal(signal.SIGINT, lambda number, frame: late.append(number))
    statuses: list[str] = []
    try:
        for trial in range(200):
            folder = tmp_path / f"r{trial}"
            presses = [rng.uniform(0, 0.15) for _ in range(1 + trial % 2)]
            with run.start(Toy(), folder, updates=updates, **settings) as session:
                timers = [threading.Timer(s, os.kill, (os.getpid(), signal.SIGINT)) for s in presses]
                for timer in timers:
                    timer.start()
                try:
                    statuses.append(session.train().status)
                except KeyboardInterrupt:
                    statuses.append("interrupted")
                for timer in timers:
                    timer.join()
            for place in (folder / "checkpoints").iterdir():
                if place.name.startswith("update-"):
                    payload = session.store.load(int(place.name.removeprefix("update-"))).payload
                    found = digests(payload)
                    wanted = expected[payload["counters"]["committed"]]
                    undone = ("best", "counters.eval", "schedule")  # an evaluation that was cut short is done later
                    assert {p: found[p] for p in found if not p.startswith(undone)} == {
                        p: wanted[p] for p in wanted if not p.startswith(undone)
                    }
            with run.resume(folder, recipe=Toy()) as session:
                session.train()
                assert digests(session.capture()) == expected[updates]
    finally:
        signal.signal(signal.SIGINT, outer)
    assert {"stopped", "interrupted"} <= set(statuses)
