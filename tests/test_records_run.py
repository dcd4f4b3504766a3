"""What a real run leaves in its records, straight and resumed: units, axes, rates, norms, and nothing private."""

from __future__ import annotations

import hashlib
import json
import math
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from labkit import run
from labkit.config import RunConfig
from labkit.recipe import Recipe, Splits
from labkit.records import Ledger, columns, read_attempts, read_lines

MARK = hashlib.sha256(b"an example that must stay private").hexdigest()  # made here, so that no source file holds it


class Line(nn.Module):
    """A weight of 1, whose gradient for an example is the example's value."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))


class Values(Recipe):
    """Each example is (value, targets); its loss per target is weight * value. SGD, so that every number is known."""

    name = "values"

    def __init__(
        self, examples: Sequence[tuple[float, int]], factors: Sequence[float] = (1.0,), fails_at: int = 0
    ) -> None:
        self.examples, self.factors, self.broken = list(examples), factors, False

    def splits(self, config: RunConfig) -> Splits:
        return Splits(train=self.examples, validation=self.examples)

    def model(self, config: RunConfig) -> nn.Module:
        return Line()

    def objective(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        if self.broken:
            raise ValueError(f"cannot read {MARK}")
        values, counts = batch
        return (model.weight * values * counts).sum(), int(counts.sum())

    def count(self, batch: Any) -> int:
        return int(batch[1].sum())

    def optimizer(self, config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=config.rate)

    def schedule(self, config: RunConfig, optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: self.factors[n % len(self.factors)])


def go(folder: Path, recipe: Values, *stops: int, **settings: Any) -> list[dict[str, Any]]:
    """Train to each stop, resuming in between, and return the attempts of the trajectory."""
    for number, updates in enumerate(stops):
        session = (
            run.resume(folder, recipe=recipe, updates=updates)
            if number
            else run.start(recipe, folder, updates=updates, rate=0.5, signals_every=1, **settings)
        )
        with session:
            session.train()
    return [line for line in read_lines(folder / "trajectory.jsonl") if "loss_sum" in line]


def test_every_axis_goes_on_after_a_resume_k13_02(tmp_path: Path) -> None:
    go(tmp_path / "r", Values([(1.0, 2)] * 4), 5, 10, batch_size=2)
    for name, axes in (("trajectory", ("update", "attempt", "examples", "tokens")), ("signals", ("seconds", "update"))):
        table = columns(tmp_path / "r" / f"{name}.jsonl", having="segment")
        for axis in axes:
            first, second = (table[axis][table["segment"] == segment] for segment in (0, 1))
            assert first.max() <= second.min(), (name, axis)
    measured = read_attempts(tmp_path / "r")[1].end["measured"]
    assert measured["updates"] == 10 and measured["seconds_used"] >= measured["seconds"]


def test_the_rate_recorded_for_an_update_is_the_one_it_used_k13_03(tmp_path: Path) -> None:
    lines = go(tmp_path / "r", Values([(1.0, 1)], factors=(1.0, 0.1)), 2, 4, batch_size=1, norm_every=1)
    assert [line["rates_used"] for line in lines] == [[0.5], [0.05], [0.5], [0.05]]
    for line in lines:  # the gradient is 1, so the weight moved by the rate
        assert line["update_norm"] == pytest.approx(line["rates_used"][0], rel=1e-6)


def test_records_evaluations_and_saves_count_updates_whatever_the_microbatches_k13_04(tmp_path: Path) -> None:
    seen = []
    for name, size in (("whole", ()), ("pieces", (2,))):
        go(tmp_path / name, Values([(1.0, 1)] * 8), 20, batch_size=8, microbatch_size=size, eval_every=5, save_every=10,
           milestone_every=10)  # fmt: skip
        records = read_lines(tmp_path / name / "trajectory.jsonl").records
        saves = sorted(path.name for path in (tmp_path / name / "checkpoints").iterdir())
        seen.append(([(r["update"], "validation" in r) for r in records], saves))
    assert seen[0] == seen[1]
    assert [update for update, evaluated in seen[0][0] if evaluated] == [5, 10, 15, 20]
    assert {"update-000000010", "update-000000020"} <= set(seen[0][1])


def test_a_split_run_has_the_records_of_a_straight_one_and_no_second_header_k13_05_k13_09(tmp_path: Path) -> None:
    recipe = Values([(float(n), 1) for n in range(1, 8)])
    straight, split = (go(tmp_path / str(stops), recipe, *stops, batch_size=4) for stops in ((10,), (3, 4, 10)))

    def without_segment(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{name: value for name, value in line.items() if name != "segment"} for line in lines]

    assert without_segment(split) == without_segment(straight) and len(straight) == 10
    assert [line["segment"] for line in split] == [0] * 3 + [1] + [2] * 6
    for first, second in zip(straight[::2], straight[1::2], strict=True):  # 7 examples: updates of 4 and 3, never mixed
        assert (first["loss_count"], second["loss_count"]) == (4, 3) and first["epoch"] == second["epoch"]


def test_the_norm_is_the_one_before_clipping_of_the_whole_update_k13_06(tmp_path: Path) -> None:
    for value, clipped, moved in ((10.0, True, 0.5), (0.5, False, 0.25)):
        for size in ((), (1,)):
            lines = go(tmp_path / f"{value}{size}", Values([(value, 1)] * 4), 1, batch_size=4, microbatch_size=size,
                       max_norm=1.0, norm_every=1)  # fmt: skip
            assert lines[0]["grad_norm"] == value and lines[0]["clipped"] is clipped
            assert lines[0]["update_norm"] == pytest.approx(moved, rel=1e-5)


def test_the_loss_of_an_update_is_the_weighted_mean_of_its_microbatches_k13_07(tmp_path: Path) -> None:
    (line,) = go(tmp_path / "r", Values([(2.0, 1), (4.0, 3)]), 1, batch_size=2, microbatch_size=(1,))
    assert line["loss_sum"] / line["loss_count"] == 3.5 and line["tokens"] == 4


def test_a_rewind_opens_a_segment_and_what_it_takes_back_is_kept_k13_08(tmp_path: Path) -> None:
    folder, recipe = tmp_path / "r", Values([(1.0, 1)] * 4)
    with run.start(recipe, folder, updates=6, rate=0.5, batch_size=2, save_every=3) as session:
        for _ in range(5):
            session.attempt()  # killed here, as far as the folder knows: nothing was saved after update 3
    lines = go_on(folder, recipe, 6)
    assert [(line["attempt"], line["segment"]) for line in lines] == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1), (6, 1)]
    cut = [line for file in (folder / "cut").glob("trajectory*") for line in read_lines(file)]
    assert [(line["attempt"], line["segment"]) for line in cut] == [(4, 0), (5, 0)]


def go_on(folder: Path, recipe: Values, updates: int) -> list[dict[str, Any]]:
    with run.resume(folder, recipe=recipe, updates=updates) as session:
        session.train()
    return [line for line in read_lines(folder / "trajectory.jsonl") if "loss_sum" in line]


def test_tokens_count_training_alone_and_a_budget_in_tokens_is_met_exactly_k14_05(tmp_path: Path) -> None:
    folder, recipe = tmp_path / "r", Values([(1.0, 100)] * 5)
    lines = go(folder, recipe, 3, 7, batch_size=1, eval_every=2)
    assert lines[-1]["tokens"] == 700
    with run.resume(folder, recipe=recipe, updates=1000, tokens=1000) as session:
        session.train()
    assert [line["tokens"] for line in read_lines(folder / "trajectory.jsonl") if "loss_sum" in line] == [
        100 * n for n in range(1, 11)
    ]


def test_no_record_holds_an_example_even_when_an_error_quotes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = Values([(math.pi, 1)] + [(1.0, 1)] * 3)
    with pytest.raises(ValueError, match=MARK), run.start(recipe, tmp_path / "r", updates=9, batch_size=2) as session:
        session.attempt()
        recipe.broken = True
        session.train()
    (failed,) = read_attempts(tmp_path / "r")
    assert (failed.status, failed.stage, failed.end["error"]) == ("failed", "forward", "ValueError")
    for path in (tmp_path / "r").rglob("*"):
        if path.is_file() and path.suffix != ".pt":
            assert MARK not in path.read_text() and str(math.pi) not in path.read_text(), path.name


def test_train_resume_and_ledger_open_no_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []

    def refuse(self: socket.socket, address: Any) -> None:
        tried.append(address)
        raise OSError("no network here")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    go(tmp_path / "r", Values([(1.0, 1)] * 4), 2, 4, batch_size=2)
    table = json.loads(Ledger(tmp_path).to_json())
    assert [row["updates"] for row in table] == [4] and tried == []
