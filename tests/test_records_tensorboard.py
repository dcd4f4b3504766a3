"""The TensorBoard mirror equals the trajectory, also after interruptions, and is missed politely."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labkit.errors import RecordsError
from labkit.records import LineLog, read_lines, truncate_after
from labkit.records.tensorboard import Mirror, mirror_run


def line(attempt: int, *, session: int = 0, skipped: str | None = None, update: int | None = None) -> dict[str, Any]:
    """A trajectory line; values that are about to be lost differ by session, as if the interrupted run had been odd."""
    return {
        "attempt": attempt, "update": attempt if update is None else update, "epoch": attempt // 4,
        "examples": 8 * attempt, "tokens": 80 * attempt, "indices": "nan",
        "loss_sum": attempt / 3 + 100 * session, "loss_count": 3 + attempt % 2, "grad_norm": attempt * 0.7,
        "clipped": attempt % 2 == 0, "update_norm": None, "rates_used": [0.1 / attempt, 0.01], "rates_next": [0.0, 0.0],
        "scale": None, "skipped": skipped,
    }  # fmt: skip


def read_back(folder: Path) -> dict[str, list[tuple[int, float]]]:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_two_interruptions_leave_one_value_per_update_equal_to_the_trajectory_k13_02_k13_08(tmp_path: Path) -> None:
    path, folder = tmp_path / "trajectory.jsonl", tmp_path / "tensorboard"
    # (restored at, first attempt, last attempt before the interruption): each resume goes back over a lost tail
    for session, (restored, last) in enumerate([(None, 9), (6, 12), (6, 15)]):
        truncate_after(path, restored or 0)
        with LineLog(path) as log, Mirror(folder, restored_at=restored) as mirror:
            for attempt in range((restored or 0) + 1, last + 1):
                lost = session < 2 and attempt > 6
                records = [line(attempt, session=session + 1 if lost else 0)]
                if attempt % 3 == 0:
                    records.append({"attempt": attempt, "update": attempt, "validation": {"loss": [attempt * 1.5, 4]}})
                for record in records:
                    log.append(record)
                    mirror.write(record)
    series = read_back(folder)
    attempts = [record for record in read_lines(path) if "loss_sum" in record]
    assert [step for step, _ in series["train/loss"]] == list(range(1, 16))
    wanted = {
        "train/loss": [r["loss_sum"] / r["loss_count"] for r in attempts],
        "train/loss_sum": [r["loss_sum"] for r in attempts],
        "train/loss_count": [r["loss_count"] for r in attempts],
        "train/gradient_norm_before_clipping": [r["grad_norm"] for r in attempts],
        "rate/group_0": [r["rates_used"][0] for r in attempts],
        "rate/group_1": [r["rates_used"][1] for r in attempts],
        "total/tokens": [r["tokens"] for r in attempts],
    }
    for tag, values in wanted.items():
        assert series[tag] == [(n, float(np.float32(value))) for n, value in enumerate(values, 1)], tag
    assert series["validation/loss"] == [(n, float(np.float32(n * 1.5 / 4))) for n in range(3, 16, 3)]
    assert series["validation_count/loss"] == [(n, 4.0) for n in range(3, 16, 3)]
    assert "train/update_norm" not in series and "train/scale" not in series


def test_without_the_purge_the_lost_tail_would_show(tmp_path: Path) -> None:
    """The negative control: what the resume has to say is needed."""
    for restored in (None, None):
        with Mirror(tmp_path, restored_at=restored) as mirror:
            mirror.write(line(1))
    assert len(read_back(tmp_path)["train/loss"]) == 2


def test_a_skipped_attempt_has_no_place_on_the_axis_of_updates(tmp_path: Path) -> None:
    with Mirror(tmp_path) as mirror:
        mirror.write(line(1))
        mirror.write(line(2, update=1, skipped="the loss is nan"))
        mirror.write(line(3, update=2))
    series = read_back(tmp_path)
    assert [step for step, _ in series["train/loss"]] == [1, 2]
    assert series["total/attempts"] == [(1, 1.0), (2, 3.0)]


def test_a_run_can_be_mirrored_from_its_trajectory_afterwards(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with LineLog(run / "trajectory.jsonl") as log:
        for attempt in range(1, 4):
            log.append(line(attempt))
    assert mirror_run(run, tmp_path / "mirror") == 3
    assert [step for step, _ in read_back(tmp_path / "mirror")["train/loss"]] == [1, 2, 3]
    with pytest.raises(RecordsError, match="not empty"):
        mirror_run(run, tmp_path / "mirror")


def test_histograms_come_on_request_only(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    with Mirror(tmp_path) as mirror:
        mirror.histograms(model, 5)
    read_back(tmp_path)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["histograms"]) == {
        f"{k}/{n}" for k in ("weights", "gradients") for n in ("weight", "bias")
    }


def test_the_mirror_is_closed_and_readable_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Mirror(tmp_path) as mirror:
        mirror.write(line(1))
        raise ZeroDivisionError
    assert len(read_back(tmp_path)["train/loss"]) == 1
    mirror.close()


def test_without_the_package_the_message_says_what_to_do_and_the_records_still_import(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['tensorboard'] = None\n"
        "import labkit.records, labkit.records.tensorboard as t\n"
        "from labkit.errors import RecordsError\n"
        "try:\n    t.Mirror(sys.argv[1])\n"
        "except RecordsError as error:\n    print(error)\n"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=root, capture_output=True, text=True, check=True
    )
    assert (
        "not installed" in done.stdout and "labkit[tensorboard]" in done.stdout and "tensorboard=false" in done.stdout
    )
