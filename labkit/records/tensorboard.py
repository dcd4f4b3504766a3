"""A TensorBoard mirror of the trajectory (extra `tensorboard`). Lesson 10.

It is a mirror and never the truth: the x axis is the committed update, each update has one value, and a resume takes
back what the interrupted process wrote beyond the restored boundary. TensorBoard keeps 32-bit floats.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import nn

from labkit.errors import RecordsError
from labkit.files import storage_errors
from labkit.records.lines import read_lines


class Mirror:
    """Writes trajectory lines to event files in `folder`. Use it in a `with` block, or close it in any case.

    restored_at: committed updates of the checkpoint that this process resumed from; later values that an earlier
    process wrote are then purged when the files are read. None for a fresh run. RecordsError without the package.
    """

    def __init__(self, folder: Path | str, restored_at: int | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise RecordsError(
                "the package tensorboard is not installed",
                "it, because the run was asked to mirror its records",
                "pip install 'labkit[tensorboard]', or go on with tensorboard=false",
            ) from error
        self.folder = Path(folder)
        _wait_for_a_later_name(self.folder)
        purge = None if restored_at is None else restored_at + 1
        with storage_errors(f"open event files in {self.folder}"):
            self._writer: Any = SummaryWriter(str(self.folder), purge_step=purge)

    def write(self, line: Mapping[str, Any]) -> None:
        """Mirror one line of the trajectory, an attempt or an evaluation. A skipped attempt moved nothing and has no
        place on the axis; the attempts counted at the next committed update tell of it."""
        update = line["update"]
        with storage_errors(f"write event files in {self.folder}"):
            if "loss_sum" in line and line.get("skipped") is None:
                for tag, value in _attempt_values(line).items():
                    self._writer.add_scalar(tag, value, update)
            for name, (total, count) in (line.get("validation") or {}).items():
                self._writer.add_scalar(f"validation/{name}", total / count if count else float("nan"), update)
                self._writer.add_scalar(f"validation_count/{name}", count, update)

    def histograms(self, model: nn.Module, update: int) -> None:
        """On request: the distribution of every parameter, and of its gradient where there is one."""
        with storage_errors(f"write event files in {self.folder}"):
            for name, parameter in model.named_parameters():
                self._writer.add_histogram(f"weights/{name}", parameter.detach(), update)
                if parameter.grad is not None:
                    self._writer.add_histogram(f"gradients/{name}", parameter.grad, update)

    def flush(self) -> None:
        """Hand everything to the system. Call it before a checkpoint is published: what is purged ends there."""
        with storage_errors(f"write event files in {self.folder}"):
            self._writer.flush()

    def close(self) -> None:
        """Flush and close; closing twice is fine."""
        with storage_errors(f"close event files in {self.folder}"):
            self._writer.close()

    def __enter__(self) -> Mirror:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def mirror_run(run_folder: Path | str, folder: Path | str) -> int:
    """Mirror a finished or interrupted run from its trajectory into an empty folder; return the number of lines."""
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise RecordsError(f"{folder} is not empty", "an empty folder: two mirrors in one would mix", "choose another")
    lines = read_lines(Path(run_folder) / "trajectory.jsonl", text_fields=("skipped", "indices"))
    with Mirror(folder) as mirror:
        for line in lines:
            mirror.write(line)
    return len(lines)


def _attempt_values(line: Mapping[str, Any]) -> dict[str, float]:
    count = line["loss_count"]
    values = {
        "train/loss": line["loss_sum"] / count if count else None,
        "train/loss_sum": line["loss_sum"],
        "train/loss_count": count,
        "train/gradient_norm_before_clipping": line.get("grad_norm"),
        "train/clipped": line.get("clipped"),
        "train/update_norm": line.get("update_norm"),
        "train/scale": line.get("scale"),
        "total/attempts": line.get("attempt"),
        "total/examples": line.get("examples"),
        "total/tokens": line.get("tokens"),
        "total/epoch": line.get("epoch"),
        **{f"rate/group_{number}": rate for number, rate in enumerate(line.get("rates_used") or ())},
    }
    return {tag: float(value) for tag, value in values.items() if value is not None}


def _wait_for_a_later_name(folder: Path) -> None:
    """Event files are read in the order of their names, which begin with the second: no two processes may share one."""
    seconds = [name.split(".")[3] for name in (path.name for path in folder.glob("events.out.tfevents.*"))]
    newest = max((int(second) for second in seconds if second.isdecimal()), default=0)
    if 0 <= newest - int(time.time()) < 2:
        time.sleep(max(0.0, newest + 1 - time.time()))
