"""Start, stop anywhere, resume: the same trajectory and state in every bit; and refusals that touch nothing."""

from __future__ import annotations

import json
import math
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from stops import STOPS, UPDATES, contents, differing, first_recorded, split, straight
from torch import nn
from toys import Items, Pull, Toy

from labkit import randomness, run
from labkit.config import MAY_CHANGE, RunConfig
from labkit.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    IdentityError,
    LabkitError,
    NonfiniteError,
    RandomnessError,
    RecipeError,
    RunFolderError,
    RunLockedError,
    StateError,
    StorageError,
    WeightingError,
)
from labkit.recipe import Splits
from labkit.records import read_attempts, read_lines
from labkit.run.session import AT_OPENING
from labkit.state import Saved

SETUPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "everything": {
        "jitter": True, "uneven": True, "microbatch_size": (1,), "max_norm": 0.5, "ema_decay": 0.9, "ema_warmup": True,
        "ema_buffers": "average", "eval_every": 2, "eval_weights": "ema", "schedule": "plateau",
        "schedule_clock": "validation", "schedule_interval": 1, "patience": 50, "norm_every": 2, "save_every": 4,
    },
    "fp16, skips, no whole batches": {
        "precision": "fp16", "initial_scale": 2.0**24, "growth_interval": 2, "schedule": "cosine", "horizon": 15,
        "warmup": 2, "order": "feistel", "n": 11, "ema_decay": 0.9, "save_epoch_end": True, "save": "background",
    },
    "momentum, epochs": {
        "momentum": 0.9, "schedule": "step", "schedule_clock": "epochs", "schedule_interval": 1, "precision": "bf16",
        "dropout": 0.5, "eval_every": 3,
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=SETUPS)
def unbroken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Saved]:
    folder = tmp_path_factory.mktemp("runs") / "straight"
    return request.param, folder, split(folder, Toy, UPDATES, **SETUPS[request.param])


@pytest.mark.parametrize("stops", STOPS)
def test_stopped_and_continued_is_the_unbroken_run(
    unbroken: tuple[str, Path, Saved], stops: str, tmp_path: Path
) -> None:
    setup, folder, final = unbroken
    mine = split(tmp_path / "split", Toy, *STOPS[stops], UPDATES, **SETUPS[setup])
    assert first_recorded(folder, tmp_path / "split") is None
    assert differing(final, mine) == []
    if setup.startswith("fp16"):
        assert mine["counters"]["scaler_skipped"] > 1


def test_a_run_folder_and_memory_give_the_same_run(tmp_path: Path) -> None:
    final, _ = straight(Toy, **SETUPS["everything"])
    assert differing(final, split(tmp_path / "r", Toy, UPDATES, **SETUPS["everything"])) == []


@pytest.mark.parametrize("lost", ["rng", "cursor", "optimizer", "counters"])
def test_a_resume_that_forgot_a_piece_would_be_noticed(lost: str, tmp_path: Path, monkeypatch: Any) -> None:
    from labkit.state import RunState

    whole = RunState.restore

    def careless(self: RunState, saved: Saved) -> None:
        whole(self, {**saved, lost: {**self.capture(), "stateful": {}}[lost]})

    final, _ = straight(Toy)
    monkeypatch.setattr(RunState, "restore", careless)
    assert differing(final, split(tmp_path / "r", Toy, 4, UPDATES)) != []


# --- where a run ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "reason"),
    [({"updates": 4}, "updates=4"), ({"epochs": 2}, "epochs=2"), ({"examples": 9}, "examples=9"),
     ({"tokens": 5}, "tokens=5"), ({"updates": 30, "epochs": 1}, "epochs=1"),
     ({"updates": 3, "epochs": 9}, "updates=3")],
)  # fmt: skip
def test_the_target_that_is_reached_first_ends_the_run_and_is_named(
    target: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with run.start(Toy(), tmp_path / "r", **target) as session:
        outcome = session.train()
    assert outcome.status == "finished" and outcome.reason.endswith(reason)


def test_a_finished_run_says_so_and_is_not_touched(tmp_path: Path) -> None:
    split(tmp_path / "r", Toy, 6)
    before = contents(tmp_path / "r" / "checkpoints")
    with run.resume(tmp_path / "r", recipe=Toy()) as session:
        outcome = session.train()
    assert (outcome.status, outcome.updates_done, outcome.update) == ("finished", 0, 6)
    assert contents(tmp_path / "r" / "checkpoints") == before


def test_update_0_is_published_before_training_and_can_be_resumed(tmp_path: Path) -> None:
    run.start(Toy(), tmp_path / "r", updates=5).close()
    assert [checked.path.name for checked in run.verify(tmp_path / "r")] == ["update-000000000"]
    with run.resume(tmp_path / "r", recipe=Toy()) as session:
        assert session.train().updates_done == 5


def test_saving_always_sometimes_or_never_gives_the_same_run(tmp_path: Path) -> None:
    finals = [
        split(tmp_path / f"{every}-{how}", Toy, 9, save_every=every, save=how)
        for every, how in ((0, "foreground"), (1, "foreground"), (1, "background"), (4, "foreground"))
    ]
    assert all(differing(finals[0], other) == [] for other in finals[1:])


def test_a_run_can_be_moved_between_two_parts(tmp_path: Path) -> None:
    final, _ = straight(Toy)
    split(tmp_path / "here", Toy, 4)
    shutil.move(tmp_path / "here", tmp_path / "there")
    with run.resume(tmp_path / "there", recipe=Toy(), updates=UPDATES) as session:
        session.train()
        assert differing(final, session.capture()) == []


def test_every_field_that_may_change_leaves_the_trajectory_as_it_was(tmp_path: Path) -> None:
    changed: dict[str, Any] = {
        "updates": UPDATES, "epochs": 90, "examples": 9000, "tokens": 9000, "seconds": 9000.0, "save": "background",
        "save_every": 1, "save_seconds": 0.01, "save_epoch_end": True, "keep": 3, "milestone_every": 2, "workers": 1,
        "start_method": "fork", "persistent_workers": False, "prefetch": 3, "on_nonfinite": "skip", "max_skips": 9,
        "max_scaler_skips": 9, "after_horizon": "hold", "signals_every": 1, "monitor_every": 2, "profile": True,
        "tensorboard": False, "histograms_every": 0,
    }  # fmt: skip
    assert set(changed) == MAY_CHANGE
    final, _ = straight(Toy, jitter=True)
    split(tmp_path / "r", Toy, 4, jitter=True)
    with run.resume(tmp_path / "r", recipe=Toy(), **changed) as session:
        session.train()
        assert differing(final, session.capture()) == []


def test_what_is_settled_at_the_opening_cannot_be_changed_in_between(tmp_path: Path) -> None:
    with run.start(Toy(), tmp_path / "r", updates=3) as session:
        for name in AT_OPENING:
            with pytest.raises(ConfigError, match="close this session"):
                session.change(**{name: getattr(session.config, name)})
        with pytest.raises(ConfigError, match="seed cannot change"):
            session.train(seed=4)
        assert session.train(updates=5).update == 5
    assert AT_OPENING < MAY_CHANGE


# --- observers, threads, requests ------------------------------------------------------------------------------------


def test_observers_may_draw_and_seed_without_moving_the_run(tmp_path: Path) -> None:
    final, _ = straight(Toy)
    recipe = Toy()
    with run.start(recipe, tmp_path / "r", updates=UPDATES) as session:
        session.observers.append(lambda record: randomness.seed_all("preview", 0))
        session.observers.append(lambda record: torch.rand(1000))
        session.train()
        assert differing(final, session.capture()) == []


def test_what_an_observer_saves_is_exact(tmp_path: Path) -> None:
    final, _ = straight(Toy)
    with run.start(Toy(), tmp_path / "r", updates=8) as session:
        session.observers.append(lambda record: session.publish() if record.update == 5 else None)
        session.observers.append(lambda record: session.request_stop("enough") if record.update == 5 else None)
        assert session.train().update == 5
    with run.resume(tmp_path / "r", recipe=Toy(), updates=UPDATES) as session:
        session.train()
        assert differing(final, session.capture()) == []


def test_the_callers_streams_are_the_callers(tmp_path: Path) -> None:
    before = randomness.capture()
    with run.start(Toy(), tmp_path / "r", updates=4) as session:
        assert randomness.differences(before, randomness.capture()) == []
        session.train()
        assert randomness.differences(before, randomness.capture()) == []
    run.resume(tmp_path / "r", recipe=Toy()).close()
    assert randomness.differences(before, randomness.capture()) == []


def test_files_named_stop_and_save_are_obeyed_and_removed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("labkit.run.session.LOOK_SECONDS", 0.0)
    with run.start(Toy(), tmp_path / "r", updates=50) as session:
        session.observers.append(lambda record: (tmp_path / "r" / "save").touch() if record.update == 2 else None)
        session.observers.append(lambda record: (tmp_path / "r" / "stop").touch() if record.update == 4 else None)
        outcome = session.train()
        assert (outcome.status, outcome.reason, outcome.update) == ("stopped", "stop file", 4)
        assert not (tmp_path / "r" / "stop").exists() and not (tmp_path / "r" / "save").exists()
    reasons = [reason_of(tmp_path / "r", update) for update in (2, 4)]
    assert reasons == ["asked", "stopped"]


def reason_of(folder: Path, update: int) -> str:
    manifest = folder / "checkpoints" / f"update-{update:09d}" / "manifest.json"
    return str(json.loads(manifest.read_text())["facts"]["reason"])


def test_one_process_at_a_time_works_in_a_run_folder(tmp_path: Path) -> None:
    with run.start(Toy(), tmp_path / "r", updates=4):
        with pytest.raises(RunLockedError):
            run.resume(tmp_path / "r", recipe=Toy())
    run.resume(tmp_path / "r", recipe=Toy()).close()


# --- refusals: one clear error, nothing touched ----------------------------------------------------------------------


class Shrinking(Items):
    """Says 12 and holds 5."""

    def __getitem__(self, index: int) -> Any:
        if index >= 5:
            raise IndexError(index)
        return super().__getitem__(index)


class Bad(Toy):
    """Toy with one thing wrong."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.own = kind, torch.Generator()

    def splits(self, config: RunConfig) -> Splits:
        whole = super().splits(config)
        train: Any = whole.train
        if self.kind == "empty":
            train = Items(0)
        if self.kind == "generator inside":
            train.rng = self.own
        transform = None
        if self.kind == "global stream":
            transform = lambda example, rng: (example[0], example[1] + torch.rand(4), example[2])  # noqa: E731
        return Splits(train, None if self.kind == "no validation" else whole.validation, transform)

    def model(self, config: RunConfig) -> nn.Module:
        model = super().model(config)
        if self.kind == "nothing to train":
            model.requires_grad_(False)
        if self.kind == "nan weights":
            with torch.no_grad():
                model.first.bias[0] = math.nan
        return model

    def optimizer(self, config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
        if self.kind == "foreign parameter":
            return torch.optim.SGD([*model.parameters(), torch.zeros(3, requires_grad=True)], lr=0.1)
        return super().optimizer(config, model)

    def objective(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, int]:
        summed, count = super().objective(model, batch)
        return (summed / count if self.kind == "mean" else summed), count

    def count(self, batch: Any) -> Any:
        return float(super().count(batch)) if self.kind == "count" else super().count(batch)

    def generators(self) -> dict[str, Any]:
        if self.kind == "generator twice":
            return {"one": self.own, "two": self.own}
        return {"global": torch.default_generator} if self.kind == "global generator" else {}


BAD_RECIPES: dict[str, tuple[type[LabkitError], str, dict[str, Any]]] = {
    "empty": (DataError, "empty", {}),
    "no validation": (DataError, "eval_every", {"eval_every": 2}),
    "nothing to train": (RecipeError, "no trainable", {}),
    "nan weights": (RecipeError, "first.bias", {}),
    "foreign parameter": (StateError, r"\(3,\)", {}),
    "mean": (WeightingError, "mean", {}),
    "count": (RecipeError, "float", {}),
    "generator twice": (RandomnessError, "one and the same", {}),
    "global generator": (RandomnessError, "one and the same", {}),
    "global stream": (RandomnessError, "shield_global", {}),
    "generator inside": (DataError, "rng", {"workers": 1}),
}


@pytest.mark.parametrize("kind", BAD_RECIPES)
def test_a_recipe_that_breaks_its_contract_is_refused_before_the_folder_is_touched(kind: str, tmp_path: Path) -> None:
    error, said, settings = BAD_RECIPES[kind]
    before = randomness.capture()
    with pytest.raises(error, match=said):
        run.start(Bad(kind), tmp_path / "r", **{"updates": 4, **settings})
    assert not (tmp_path / "r").exists()
    assert randomness.differences(before, randomness.capture()) == []


BAD_SETTINGS: list[tuple[dict[str, Any], type[LabkitError], str]] = [
    ({"updates": 4, "bacth_size": 3}, ConfigError, "batch_size"),
    ({"updates": 4, "batch_size": 0}, ConfigError, "batch_size=0"),
    ({}, ConfigError, "nothing says where the run ends"),
    ({"updates": 4, "device": "cdua"}, ConfigError, "cuda"),
    ({"updates": 4, "matmul": "high"}, ConfigError, "tf32"),
    ({"updates": 4, "cudnn_benchmark": True}, ConfigError, "deterministic"),
    ({"updates": 4, "metric": "nope", "mode": "max", "eval_every": 1}, ConfigError, "nope"),
    ({"updates": 4, "schedule": "cosine", "horizon": 3}, ConfigError, "ends after 3"),
    ({"updates": 4, "workers": 1, "start_method": "forkserve"}, ConfigError, "start_method"),
]


@pytest.mark.parametrize(("settings", "error", "said"), BAD_SETTINGS, ids=[str(row[0]) for row in BAD_SETTINGS])
def test_a_bad_setting_is_refused_before_the_folder_is_touched(
    settings: dict[str, Any], error: type[LabkitError], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        run.start(Toy(), tmp_path / "r", **settings)
    assert not (tmp_path / "r").exists()


def test_a_data_set_that_is_another_at_each_reading_is_said(tmp_path: Path) -> None:
    class Noisy(Items):
        rng = torch.Generator()

        def __getitem__(self, index: int) -> Any:
            number, features, targets = super().__getitem__(index)
            return number, features + torch.rand(4, generator=self.rng), targets

    class Own(Toy):
        def splits(self, config: RunConfig) -> Splits:
            return Splits(Noisy(12), Items(10, 1))

    with run.start(Own(), tmp_path / "r", updates=3) as session:
        assert any("another example for the same index" in text for text in session.notices)
    with run.start(Toy(), tmp_path / "s", updates=3) as session:
        assert not any("another example" in text for text in session.notices)


def test_a_data_set_that_holds_less_than_it_says_is_refused_at_the_attempt_that_finds_out(tmp_path: Path) -> None:
    class Short(Toy):
        def splits(self, config: RunConfig) -> Splits:
            return Splits(Shrinking(12), Items(10, 1))

    with run.start(Short(), tmp_path / "r", updates=9) as session, pytest.raises(DataError, match="shrink"):
        session.train()
    assert read_attempts(tmp_path / "r")[0].end["stage"] == "data"


def test_a_folder_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    split(tmp_path / "r", Toy, 3)
    before = contents(tmp_path / "r")
    with pytest.raises(RunFolderError, match="resume"):
        run.start(Toy(), tmp_path / "r", updates=4)
    assert contents(tmp_path / "r") == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunFolderError, match="is a file"):
        run.start(Toy(), tmp_path / "file", updates=4)
    with pytest.raises(RunFolderError, match="no folder"):
        run.resume(tmp_path / "nowhere")


def test_what_a_start_that_failed_left_behind_can_be_started_again(tmp_path: Path, monkeypatch: Any) -> None:
    from labkit.checkpoint import CheckpointStore

    whole = CheckpointStore.publish

    def full(*_: Any) -> None:
        raise StorageError("the disk is full", "room", "make room")

    monkeypatch.setattr(CheckpointStore, "publish", full)
    with pytest.raises(StorageError):
        run.start(Toy(), tmp_path / "r", updates=4)
    monkeypatch.setattr(CheckpointStore, "publish", whole)
    final, _ = straight(Toy, 4)
    assert differing(final, split(tmp_path / "r", Toy, 4)) == []


class Other(Toy):
    """The same recipe after somebody edited it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def splits(self, config: RunConfig) -> Splits:
        whole = super().splits(config)
        lengths = {"longer": 14, "shorter": 3}
        train = Items(lengths[self.kind]) if self.kind in lengths else whole.train
        return Splits(Items(12, salt=5) if self.kind == "other data" else train, whole.validation)

    def fingerprint(self, config: RunConfig) -> Any:
        from labkit.recipe import tensor_digest

        return {"train": tensor_digest(self.splits(config).train.features)}

    def model(self, config: RunConfig) -> nn.Module:
        model = super().model(config)
        if self.kind == "wider":
            model.last = nn.Linear(8, 2)
        if self.kind == "one module more":
            model.more = nn.Dropout(0.1)
        return model

    def optimizer(self, config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
        if self.kind == "other optimizer":
            return torch.optim.SGD(model.parameters(), lr=config.rate, momentum=0.9)
        return super().optimizer(config, model)


REFUSED_RESUMES: dict[str, tuple[type[LabkitError], str, dict[str, Any]]] = {
    "longer": (IdentityError, "data.train.length: checkpoint 12, now 14", {}),
    "other data": (IdentityError, "data.train.digest", {}),
    "wider": (IdentityError, "architecture.last", {}),
    "one module more": (StateError, "more", {}),
    "other optimizer": (StateError, "AdamW.*SGD", {}),
    "shorter": (StateError, "cursor", {"overrides": ["data"]}),
    "rate": (IdentityError, "rate is 0.01 in this run, now 0.5", {"rate": 0.5}),
    "seed": (IdentityError, "seed is 0 in this run, now 1", {"seed": 1}),
    "batch size": (IdentityError, "batch_size is 2 in this run, now 3", {"batch_size": "3"}),
    "microbatches": (IdentityError, "microbatch_size", {"microbatch_size": (1,)}),
    "an option": (IdentityError, "dropout", {"dropout": 0.5}),
    "direction": (IdentityError, "mode", {"mode": "max"}),
    "unknown": (ConfigError, "updates", {"updats": 9}),
    "threads": (IdentityError, "--override threads", {"threads": 2}),
    "no such override": (IdentityError, "no override", {"overrides": ["seed"]}),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "r"
    split(folder, lambda: Other("same"), 4)
    return folder


@pytest.mark.parametrize("kind", REFUSED_RESUMES)
def test_a_refused_resume_touches_nothing(kind: str, finished: Path) -> None:
    error, said, settings = REFUSED_RESUMES[kind]
    before, streams = contents(finished), randomness.capture()
    with pytest.raises(error, match=said):
        run.resume(finished, recipe=Other(kind), **settings)
    assert contents(finished) == before
    assert randomness.differences(streams, randomness.capture()) == []
    assert [attempt.status for attempt in read_attempts(finished)] == ["finished"]


def test_an_override_goes_on_and_is_written_down(tmp_path: Path) -> None:
    split(tmp_path / "r", Toy, 4)
    with run.resume(tmp_path / "r", recipe=Toy(), threads=2, overrides=["threads"], updates=6) as session:
        assert any("no longer exact" in text for text in session.notices)
        session.train()
    begun = read_attempts(tmp_path / "r")[-1].begin
    assert begun["overrides"] == {"machine.threads": [1, 2]} and begun["exact"] is False
    with run.resume(tmp_path / "r", recipe=Toy(), updates=8):
        pass
    assert read_attempts(tmp_path / "r")[-1].begin["exact"] is False  # once inexact, always


def test_the_checkpoint_of_a_dry_run_is_refused(tmp_path: Path) -> None:
    with run.start(Toy(), tmp_path / "r", updates=4) as session:
        record = session.dry_run()
    assert record.update == 1 and reason_of(tmp_path / "r", 1) == "dry run"
    with pytest.raises(CheckpointError, match="dry run"):
        run.resume(tmp_path / "r", recipe=Toy())


def test_a_damaged_newest_checkpoint_falls_back_and_comes_out_the_same(tmp_path: Path) -> None:
    final, _ = straight(Toy)
    split(tmp_path / "r", Toy, 7, save_every=3)
    state = tmp_path / "r" / "checkpoints" / "update-000000007" / "state.pt"
    state.write_bytes(state.read_bytes()[:-5])
    with run.resume(tmp_path / "r", recipe=Toy(), updates=UPDATES) as session:
        assert session.update == 6 and any("damaged" in text for text in session.notices)
        session.train()
        assert differing(final, session.capture()) == []
    lines = [line["attempt"] for line in read_lines(tmp_path / "r" / "trajectory.jsonl").records]
    assert lines == list(range(1, UPDATES + 1))


# --- failures while it runs ------------------------------------------------------------------------------------------


def test_an_incident_can_be_replayed_and_the_replay_touches_nothing(tmp_path: Path) -> None:
    class At5(Toy):
        """The batch that is fifth in the first epoch is poison, wherever the run was resumed."""

        def objective(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, int]:
            summed, count = super().objective(model, batch)
            return (summed * math.nan if model.training and int(model.forwards) == 5 else summed), count

    with run.start(At5(), tmp_path / "r", updates=9, save_every=3) as session:
        with pytest.raises(NonfiniteError, match="attempt 5"):
            session.train()
    before, threads = contents(tmp_path / "r"), torch.get_num_threads()
    torch.set_num_threads(2)
    found = run.replay(tmp_path / "r", recipe=At5())
    assert (found.attempt, found.from_update, found.reproduced) == (5, 3, True)
    assert torch.get_num_threads() == threads == 1  # the run's own arithmetic, not that of the process
    assert contents(tmp_path / "r") == before
    with run.resume(tmp_path / "r", recipe=At5()) as session, pytest.raises(NonfiniteError):
        session.train()


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    """A finite gradient times a large rate overflows: no loss has seen it yet when the save is due."""
    recipe = Pull([(1e30, 1)] * 4)
    with run.start(recipe, tmp_path / "r", updates=4, rate=1e10, save_every=1) as session:
        with pytest.raises(NonfiniteError, match="parameter w is not finite"):
            session.train()
    with run.resume(tmp_path / "r", recipe=Pull([(1e30, 1)] * 4)) as session:
        assert session.update == 0 and torch.isfinite(session.state.model.w)


@pytest.mark.parametrize("how", ["foreground", "background"])
def test_a_save_that_fails_is_recorded_and_the_run_goes_on(how: str, tmp_path: Path) -> None:
    final, _ = straight(Toy, 9)
    with run.start(Toy(), tmp_path / "r", updates=9, save_every=2, save=how) as session:
        whole = session.store.publish_plain

        def sometimes(update: int, *rest: Any) -> Any:
            if update in (2, 4):
                raise StorageError("the disk is full", "room", "make room")
            return whole(update, *rest)

        session.store.publish_plain = sometimes  # type: ignore[method-assign]
        outcome = session.train()
        assert outcome.update == 9 and sum("save failed" in text for text in session.notices) == 2
        assert differing(final, session.capture()) == []
    assert [r["what"] for r in read_attempts(tmp_path / "r")[0].remarks] == ["save failed"] * 2
    with run.resume(tmp_path / "r", recipe=Toy()) as session:
        assert session.update == 9


def test_a_background_save_that_failed_does_not_take_the_last_one_along(tmp_path: Path) -> None:
    with run.start(Toy(), tmp_path / "r", updates=9, save_every=1, save="background") as session:
        whole = session.store.publish_plain

        def slow_and_full(update: int, *rest: Any) -> Any:
            if update == 8:
                time.sleep(0.5)  # it is not known yet when the next one is due
                raise StorageError("the disk is full", "room", "make room")
            return whole(update, *rest)

        session.store.publish_plain = slow_and_full  # type: ignore[method-assign]
        assert session.train().update == 9
    with run.resume(tmp_path / "r", recipe=Toy()) as session:
        assert session.update == 9


def test_an_error_in_the_recipe_leaves_the_newest_checkpoint_and_says_the_stage(tmp_path: Path) -> None:
    class Failing(Toy):
        fail = True

        def objective(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, int]:
            if self.fail and len(self.seen) == 5:
                raise ZeroDivisionError("mine")
            return super().objective(model, batch)

    with pytest.raises(ZeroDivisionError):
        with run.start(Failing(), tmp_path / "r", updates=9, save_every=2) as session:
            session.train()
    ended = read_attempts(tmp_path / "r")[0]
    assert (ended.status, ended.end["stage"]) == ("failed", "forward")
    final, _ = straight(Toy, 9)
    healed = Failing()
    healed.fail = False
    with run.resume(tmp_path / "r", recipe=healed) as session:
        assert session.update == 4
        session.train()
        assert differing(final, session.capture()) == []


def test_a_stop_that_an_error_overtook_does_not_end_the_next_call(tmp_path: Path) -> None:
    class Once(Toy):
        session: Any = None

        def metrics(self, model: nn.Module, batch: Any) -> Any:
            if self.session is not None:
                self.session.request_stop("in the middle of an evaluation")
                self.session = None
                raise ZeroDivisionError("mine")
            return super().metrics(model, batch)

    recipe = Once()
    with run.start(recipe, tmp_path / "r", updates=6, eval_every=2) as session:
        recipe.session = session
        with pytest.raises(ZeroDivisionError):
            session.train()
        assert session.train().status == "finished"  # an evaluation tears nothing


def test_training_in_a_thread_gives_one_notice_and_can_be_stopped(tmp_path: Path) -> None:
    final, _ = straight(Toy)
    with run.start(Toy(), tmp_path / "r", updates=9) as session:
        session.observers.append(lambda record: session.request_stop() if record.update == 4 else None)
        for _ in range(2):
            thread = threading.Thread(target=session.train)
            thread.start()
            thread.join(60)
        assert sum("main thread" in text for text in session.notices) == 1
    with run.resume(tmp_path / "r", recipe=Toy(), updates=UPDATES) as session:
        session.train()
        assert differing(final, session.capture()) == []
