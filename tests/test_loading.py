"""What the feed promises: the same bits whoever fetches, errors by name, and no process left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, default_collate

from labkit import randomness
from labkit.errors import ConfigError, DataError, StateError
from labkit.loading import Feed, WorkerError, draws_from_global, fetch, hidden_generators
from labkit.order import Cursor, EpochOrder

ROOT = Path(__file__).parent.parent


class Numbers:
    """Example i is a vector that only i decides."""

    def __init__(self, length: int = 12) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return torch.arange(5, dtype=torch.float32) + index


class Together(Numbers):
    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return torch.stack([self[index] for index in indices])


class Jumpy(Numbers):
    """Draws from all three global streams, as much careless code does."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + random.random() + np.random.rand() + torch.rand(5)


class Troubled(Numbers):
    """Does something bad at one index, `what` says what."""

    def __init__(self, what: str, at: int, length: int = 12) -> None:
        super().__init__(length)
        self.what, self.at = what, at

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.at and multiprocessing.parent_process() is not None:
            if self.what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.what == "exit":
                os._exit(3)
            if self.what == "hang":
                time.sleep(60)
            if self.what == "slow":
                time.sleep(1.5)
        if index == self.at and self.what == "raise":
            raise ArithmeticError("no such sum")
        return super().__getitem__(index)


class Keeper(Numbers):
    def __init__(self, generator: Any) -> None:
        super().__init__()
        self.inner = {"noise": [generator]}


def noise(example: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    return example + float(rng.random())


def whole(batch: Any) -> Any:
    return batch


def with_lambda(examples: list[torch.Tensor]) -> Any:
    return {"rows": torch.stack(examples), "later": lambda: 0}


def summed(examples: list[torch.Tensor]) -> dict[str, Any]:
    """Reductions and the default dtype show a different number of threads or settings."""
    rows = torch.stack(examples)
    sum_, threads = rows.repeat(400, 50).sum(), torch.get_num_threads()
    return {"rows": rows, "sum": sum_, "made": torch.tensor([0.1]), "threads": threads}


def feed(dataset: Any = None, **settings: Any) -> Feed:
    dataset = Numbers() if dataset is None else dataset
    order = EpochOrder(settings.pop("order", "randperm"), 5, settings.pop("length", len(dataset)))
    settings = {"collate": default_collate, "transform": None, "batch_size": 5, "seed": 5, **settings}
    cursor = settings.pop("cursor", Cursor())
    made = Feed(dataset, order=order, **settings)
    made.at(cursor)
    return made


def bits(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return str(batch.dtype), tuple(batch.shape), batch.numpy().tobytes()
    if isinstance(batch, dict):
        return {name: bits(value) for name, value in batch.items()}
    return batch


def taken(some: Feed, updates: int) -> list[Any]:
    got = [some.next() for _ in range(updates)]
    return [(g.epoch, g.start, g.indices.tolist(), [bits(b) for b in g.microbatches], g.cursor_after) for g in got]


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


# ----------------------------------------------------------------------------------- what an update is


def test_each_epoch_gives_each_example_once_and_its_last_update_is_short() -> None:
    got = [feed_.next() for feed_ in [feed()] for _ in range(6)]
    assert [(g.epoch, g.start, len(g.indices)) for g in got] == [
        (0, 0, 5), (0, 5, 5), (0, 10, 2), (1, 0, 5), (1, 5, 5), (1, 10, 2),
    ]  # fmt: skip
    for epoch in (0, 1):
        seen = np.concatenate([g.indices for g in got if g.epoch == epoch])
        assert sorted(seen) == list(range(12))
    assert [g.cursor_after for g in got[1:4]] == [Cursor(0, 10), Cursor(1, 0), Cursor(1, 5)]
    assert got[0].indices.tolist() != got[3].indices.tolist()


def test_microbatches_cut_an_update_and_never_change_its_examples() -> None:
    straight = [feed_.next() for feed_ in [feed(batch_size=8)] for _ in range(4)]
    for sizes in [(1,), (3,), (4, 3), (8,), (100,)]:
        cut_ = [feed_.next() for feed_ in [feed(batch_size=8, microbatch_size=sizes)] for _ in range(4)]
        for one, other in zip(straight, cut_, strict=True):
            assert np.array_equal(one.indices, other.indices)
            assert torch.equal(one.microbatches[0], torch.cat(other.microbatches))
    assert [len(b) for b in cut_[0].microbatches] == [8]
    assert [len(b) for b in feed(batch_size=8, microbatch_size=(4, 3)).next().microbatches] == [4, 3, 1]


@pytest.mark.parametrize("start", [Cursor(0, 0), Cursor(0, 5), Cursor(0, 10), Cursor(1, 0), Cursor(2, 5)])
def test_a_feed_starts_at_any_cursor_as_if_it_had_come_there(start: Cursor) -> None:
    straight = taken(feed(transform=noise), 12)
    at = next(i for i, one in enumerate(straight) if Cursor(one[0], one[1]) == start)
    assert taken(feed(transform=noise, cursor=start), 4) == straight[at : at + 4]


def test_the_feed_can_be_put_back() -> None:
    some = feed(transform=noise)
    first = taken(some, 4)
    some.at(Cursor())
    assert taken(some, 4) == first


def test_getitems_is_used_without_a_transform_and_gives_the_same() -> None:
    assert taken(feed(Together(), collate=whole), 4) == taken(feed(Numbers()), 4)
    assert torch.equal(fetch(Together(), whole, np.array([3, 1])), fetch(Numbers(), default_collate, [3, 1]))


def test_works_on_a_torch_subset() -> None:
    assert taken(feed(Subset(Numbers(30), list(range(12)))), 3) == taken(feed(), 3)  # type: ignore[arg-type]


# -------------------------------------------------------------------------- the same bits for everyone

WAYS = [
    (1, "fork", True, 1), (2, "fork", True, 2), (2, "fork", False, 1), (4, "fork", True, 8), (4, "fork", False, 3),
    (2, "spawn", True, 2),
]  # fmt: skip
SLOW_WAYS = [(w, m, p, f) for w in (1, 2, 4) for m in ("spawn", "forkserver") for p in (True, False) for f in (1, 8)]


@pytest.mark.parametrize("way", WAYS + [pytest.param(way, marks=pytest.mark.slow) for way in SLOW_WAYS], ids=str)
def test_K07_01_04_same_bits_with_any_workers_start_method_persistence_and_prefetch(way: tuple[Any, ...]) -> None:
    workers, method, persistent, prefetch = way
    torch.set_default_dtype(torch.float64)  # a worker must learn this, too
    settings: dict[str, Any] = {"collate": summed, "transform": noise, "microbatch_size": (2, 1)}
    crewed = feed(workers=workers, start_method=method, persistent_workers=persistent, prefetch=prefetch, **settings)
    try:
        assert taken(crewed, 8) == taken(feed(**settings), 8)
    finally:
        crewed.close()


def test_this_process_makes_batches_with_one_thread_and_puts_the_number_back() -> None:
    torch.set_num_threads(2)
    assert feed(collate=summed).next().microbatches[0]["threads"] == 1
    assert torch.get_num_threads() == 2
    with pytest.raises(ArithmeticError):
        feed(Troubled("raise", 0), batch_size=12).next()
    assert torch.get_num_threads() == 2


def test_K01_06_K07_04_the_number_of_workers_may_change_at_a_resume() -> None:
    straight = taken(feed(transform=noise), 9)
    got: list[Any] = []
    for workers in (2, 0, 1):
        cursor = got[-1][4] if got else Cursor()
        part = feed(transform=noise, workers=workers, start_method="fork", cursor=cursor)
        got += taken(part, 3)
        part.close()
    assert got == straight


@pytest.mark.parametrize("persistent", [True, False])
def test_K01_10_a_resume_position_is_for_one_epoch_only(persistent: bool) -> None:
    some = feed(batch_size=2, cursor=Cursor(0, 6), workers=1, start_method="fork", persistent_workers=persistent)
    got = [some.next() for _ in range(3 + 12)]
    some.close()
    for epoch in (1, 2):
        assert sorted(i for g in got if g.epoch == epoch for i in g.indices) == list(range(12))


def drawn(example: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    return torch.tensor(rng.random(), dtype=torch.float64)


@pytest.mark.parametrize("workers", [0, 2, 4])
def test_K07_01_02_03_numbers_differ_by_example_and_epoch_and_repeat_with_the_run(workers: int) -> None:
    def numbers() -> dict[tuple[int, int], float]:
        some = feed(transform=drawn, workers=workers, start_method="fork", batch_size=4)
        got = [some.next() for _ in range(3 * 3)]
        some.close()
        return {
            (g.epoch, index): value
            for g in got
            for index, value in zip(g.indices.tolist(), g.microbatches[0].tolist(), strict=True)
        }

    first = numbers()
    assert len(first) == 36 and len(set(first.values())) == 36
    assert numbers() == first


@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_is_drawn_from_a_global_stream(workers: int) -> None:
    before = randomness.capture()
    some = feed(transform=noise, workers=workers, start_method="fork")
    taken(some, 5)
    some.close()
    assert randomness.differences(before, randomness.capture()) == []


# -------------------------------------------------------------------------------------- global streams


def test_a_draw_from_a_global_stream_is_found_and_undone() -> None:
    before = randomness.capture()
    assert draws_from_global(Jumpy(), None, default_collate, 0) == ["python", "numpy", "torch"]
    assert draws_from_global(Numbers(), noise, default_collate, 0) == []
    assert draws_from_global(Numbers(), lambda e, rng: e + torch.rand(1), default_collate, 0) == ["torch"]
    assert draws_from_global(Numbers(), None, lambda examples: random.random(), 0) == ["python"]
    assert randomness.differences(before, randomness.capture()) == []


def test_without_the_shield_workers_give_other_bits() -> None:
    """The control: if this passed by itself, the shield would protect from nothing."""
    crewed = feed(Jumpy(), workers=2, start_method="fork")
    assert taken(crewed, 3) != taken(feed(Jumpy()), 3)
    crewed.close()


def test_the_shield_gives_global_draws_a_key_and_puts_the_streams_back() -> None:
    settings: dict[str, Any] = {"shield_global": True, "transform": noise}
    before = randomness.capture()
    straight = taken(feed(Jumpy(), **settings), 6)
    assert randomness.differences(before, randomness.capture()) == []
    crewed = feed(Jumpy(), workers=2, start_method="fork", **settings)
    assert taken(crewed, 6) == straight
    crewed.close()
    assert taken(feed(Jumpy(), cursor=Cursor(1, 0), **settings), 3) == straight[3:]
    torch.rand(3)
    assert taken(feed(Jumpy(), **settings), 6) == straight


# --------------------------------------------------------------------------------------- bad data sets


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_set_that_holds_less_than_its_length_is_named(workers: int) -> None:
    class Promising(Numbers):
        def __len__(self) -> int:
            return 20

    some = feed(Promising(), batch_size=20, workers=workers, start_method="fork")
    with pytest.raises(DataError, match=r"the data set has no example \d+"):
        some.next()


def test_a_data_set_that_shrinks_is_refused_at_once_and_the_position_stays() -> None:
    data = Numbers()
    some = feed(data)
    some.next()
    data.length = 11
    with pytest.raises(DataError, match="holds 11 examples.*12"):
        some.next()
    data.length = 12
    assert some.next().start == 5
    with pytest.raises(DataError, match="holds 12 examples"):
        feed(data, length=13)


def test_getitems_that_loses_an_example_is_named() -> None:
    class Lossy(Numbers):
        def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
            return [self[index] for index in indices[1:]]

    with pytest.raises(DataError, match="4 examples for 5 indices"):
        feed(Lossy()).next()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_data_set_comes_through_and_the_update_can_be_tried_again(workers: int) -> None:
    some = feed(Troubled("raise", 3), batch_size=12, workers=workers, start_method="fork")
    for _ in range(2):
        with pytest.raises(ArithmeticError, match="no such sum"):
            some.next()
        assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    "generator",
    [torch.Generator(), np.random.default_rng(0), np.random.RandomState(0), random.Random(0)],
    ids=lambda g: type(g).__module__ + "." + type(g).__name__,
)
def test_K07_01_a_generator_kept_by_the_data_set_is_refused_with_workers(generator: Any) -> None:
    assert hidden_generators(Keeper(generator)) == ["dataset.inner['noise'][0]"]
    with pytest.raises(DataError, match=r"dataset\.inner\['noise'\]\[0\].*transform\(example, rng\)"):
        feed(Keeper(generator), workers=2, start_method="fork")


def test_ordinary_data_sets_hold_no_hidden_generator() -> None:
    assert hidden_generators(Subset(Numbers(), [1, 2])) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 0},
        {"microbatch_size": (2, 0)},
        {"workers": -1},
        {"prefetch": 0},
        {"workers": 1, "start_method": "x"},
    ],
    ids=str,
)
def test_impossible_settings_are_refused_before_anything_starts(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        feed(**settings)


@pytest.mark.parametrize("cursor", [Cursor(0, 12), Cursor(0, -1), Cursor(-1, 0)], ids=str)
def test_K01_11_a_cursor_outside_the_data_set_is_refused(cursor: Cursor) -> None:
    with pytest.raises(StateError, match="length of the data set"):
        feed(cursor=cursor)


def test_a_feed_without_a_position_says_so() -> None:
    some = Feed(Numbers(), default_collate, None, EpochOrder("randperm", 0, 12), batch_size=3)
    with pytest.raises(StateError, match=r"at\(cursor\)"):
        some.next()


# --------------------------------------------------------------------------------------- dying workers


@pytest.mark.parametrize(("what", "says"), [("kill", "SIGKILL.*memory"), ("exit", "exited with code 3")])
def test_a_worker_that_dies_at_work_is_named_within_seconds(what: str, says: str) -> None:
    some = feed(Troubled(what, 7), workers=2, start_method="fork", batch_size=3)
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=says):
        for _ in range(5):
            some.next()
    assert time.monotonic() - begin < 4


def test_K12_03_a_worker_killed_from_outside_is_found_by_the_fetch_and_nowhere_else() -> None:
    some = feed(workers=2, start_method="fork", batch_size=1, prefetch=1)
    some.next()
    victim = multiprocessing.active_children()[0]
    os.kill(victim.pid or 0, signal.SIGKILL)
    time.sleep(0.3)  # torch's handler would raise here
    with pytest.raises(WorkerError, match="SIGKILL"):
        for _ in range(5):
            some.next()
    assert [g.start for g in [some.next()]][0] <= 4  # and it can go on
    some.close()


def test_a_slow_example_is_waited_for() -> None:
    some = feed(Troubled("slow", 3), workers=1, start_method="fork", batch_size=12)
    assert len(some.next().indices) == 12
    some.close()


@pytest.mark.slow
def test_closing_with_a_hung_worker_takes_seconds_not_minutes() -> None:
    second = int(EpochOrder("randperm", 5, 12).indices(0, 1, 2)[0])
    some = feed(Troubled("hang", second), workers=2, start_method="fork", batch_size=1)
    some.next()
    begin = time.monotonic()
    some.close()
    assert time.monotonic() - begin < 6
    assert multiprocessing.active_children() == []


def test_a_batch_that_cannot_travel_is_an_error_and_not_a_silence() -> None:
    some = feed(collate=with_lambda, workers=1, start_method="fork")
    with pytest.raises(DataError, match="cannot be sent from a worker.*tensors and plain values"):
        some.next()


def test_K15_04_a_feed_goes_on_after_an_interrupt_in_the_fetch() -> None:
    straight = taken(feed(transform=noise, batch_size=3), 6)
    some = feed(Troubled("slow", int(straight[2][2][0])), transform=noise, workers=2, start_method="fork", batch_size=3)
    got = taken(some, 2)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        some.next()
    assert multiprocessing.active_children() == []
    got += taken(some, 4)
    some.close()
    assert got == straight


def test_a_feed_that_is_dropped_takes_its_workers_along() -> None:
    some = feed(workers=2, start_method="fork")
    some.next()
    assert len(multiprocessing.active_children()) == 2
    del some
    assert multiprocessing.active_children() == []


def test_closing_twice_or_unused_is_fine() -> None:
    some = feed(workers=2, start_method="fork")
    some.close()
    some.next()
    some.close()
    some.close()


def test_K12_06_handlers_and_masks_are_as_before() -> None:
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGCHLD]
    before = [signal.getsignal(n) for n in numbers], signal.pthread_sigmask(signal.SIG_BLOCK, [])
    some = feed(workers=1, start_method="fork")
    some.next()
    assert ([signal.getsignal(n) for n in numbers], signal.pthread_sigmask(signal.SIG_BLOCK, [])) == before
    some.close()


def test_a_feed_works_outside_the_main_thread() -> None:
    got: list[Any] = []

    def work() -> None:
        some = feed(workers=2, start_method="fork")
        got.extend(taken(some, 4))
        some.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert got == taken(feed(), 4)


# ---------------------------------------------------------------------------- signals to a whole group

STOPPED = """
    import os, signal, sys, time
    sys.path[:0] = [{root!r}, {tests!r}]
    from test_loading import *
    if __name__ == "__main__":
        heard = []
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda n, frame: heard.append(n))
        some = feed(transform=noise, workers=2, start_method={method!r}, batch_size=1, prefetch=1)
        got = taken(some, 1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.killpg(0, number)
        time.sleep(0.2)
        got += taken(some, 20)
        same = got == taken(feed(transform=noise, batch_size=1), 21)
        if {close}:
            some.close()
        print(json.dumps([same, sorted(set(heard))]))
"""


def run_script(tmp_path: Path, text: str, **values: Any) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text).format(root=str(ROOT), tests=str(ROOT / "tests"), **values))
    return subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, start_new_session=True
    )


@pytest.mark.parametrize("method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
@pytest.mark.parametrize("close", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_K12_03_signals_to_the_group_leave_the_workers_at_work_and_the_exit_free(
    tmp_path: Path, method: str, close: bool
) -> None:
    done = run_script(tmp_path, STOPPED, method=method, close=close)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [True, [signal.SIGINT, signal.SIGUSR1, signal.SIGTERM]]


@pytest.mark.slow
def test_workers_leave_when_the_process_that_trains_is_killed(tmp_path: Path) -> None:
    text = """
        import sys
        sys.path[:0] = [{root!r}, {tests!r}]
        from test_loading import *
        if __name__ == "__main__":
            some = feed(workers=2, start_method="fork")
            some.next()
            print([p.pid for p in multiprocessing.active_children()], flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    pids = json.loads(run_script(tmp_path, text).stdout)
    end = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end:
        time.sleep(0.2)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


# --------------------------------------------------------------------------------- notebooks and spawn

CELL = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
from test_loading import *
class Mine(Numbers):
    pass
def outcome(**settings):
    try:
        some = feed(Mine(), **settings)
        some.next(); some.close()
        return "trains"
    except DataError as error:
        return str(error)
ways = [dict(workers=2, start_method="spawn"), dict(workers=0), dict(workers=1, start_method="fork")]
print(json.dumps([outcome(**way) for way in ways]))
"""


def test_K15_01_a_class_from_a_notebook_cell_is_named_before_spawn(tmp_path: Path) -> None:
    code = CELL.format(root=str(ROOT), tests=str(ROOT / "tests"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    refused, here, forked = json.loads(done.stdout)
    assert "Mine is defined in a notebook cell" in refused and "move Mine to a .py file" in refused
    assert "workers=0" in refused
    assert (here, forked) == ("trains", "trains")


def test_what_cannot_be_pickled_is_refused_before_spawn() -> None:
    with pytest.raises(DataError, match="cannot be sent to workers started by 'spawn'.*top of a .py file"):
        feed(collate=lambda examples: examples, workers=1, start_method="spawn")
    feed(collate=lambda examples: examples, workers=1, start_method="fork")
