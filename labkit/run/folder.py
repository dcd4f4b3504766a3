"""What lies in a run folder, and reading back what a run was. Lesson 10."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.checkpoint import CheckpointStore
from labkit.config import RunConfig, from_dict
from labkit.errors import RunFolderError
from labkit.files import write_text_durably
from labkit.records.tails import last_record

FORMAT = 1


@dataclass(frozen=True)
class RunFolder:
    """The paths inside a run folder. Everything a run needs is in here, so the folder can be moved or copied whole."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def trajectory(self) -> Path:
        return self.path / "trajectory.jsonl"

    @property
    def signals(self) -> Path:
        return self.path / "signals.jsonl"

    @property
    def samples(self) -> Path:
        return self.path / "samples.jsonl"

    @property
    def incidents(self) -> Path:
        return self.path / "incidents.jsonl"

    @property
    def monitors(self) -> Path:
        return self.path / "monitors.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def save_request(self) -> Path:
        """Create this file while the run is going, and it saves at the next boundary and removes the file."""
        return self.path / "save"

    @property
    def stop_request(self) -> Path:
        """Create this file while the run is going, and it saves and stops at the next boundary, removing the file."""
        return self.path / "stop"

    def pinned(self) -> int | None:
        """The checkpoint (its update) before the last incident, which retention keeps for replay."""
        last = last_record(self.incidents)
        return None if last is None else last.get("checkpoint")

    def exists(self) -> bool:
        """True when a run was started here."""
        return self.config.is_file()

    def store(self, config: RunConfig, run_id: str) -> CheckpointStore:
        """The checkpoints of this run; those of another run in the same folder are never chosen or removed."""
        return CheckpointStore(
            self.checkpoints, keep=config.keep, milestone_every=config.milestone_every, run_id=run_id
        )  # fmt: skip

    def write_config(self, run_id: str, config: RunConfig) -> None:
        """config.json, durably: a run exists from this moment on."""
        meta = {"format": FORMAT, "run_id": run_id, "config": config.to_dict()}
        write_text_durably(self.config, json.dumps(meta, indent=1) + "\n")

    def read_config(self) -> RunConfig:
        """The resolved config that the run was started with. Raises RunFolderError when there is none."""
        return from_dict(self.read_meta()["config"])

    def read_meta(self) -> dict[str, Any]:
        """config.json: {"format", "run_id", "config"}."""
        if not self.path.is_dir():
            raise RunFolderError(f"there is no folder {self.path}", "a run folder", "start one with `labkit train`")
        try:
            meta = json.loads(self.config.read_text(encoding="utf-8"))
            assert isinstance(meta["config"], dict)
        except FileNotFoundError:
            raise RunFolderError(
                f"{self.path} holds no config.json", "a run folder", "check the path, or start a run there"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
            raise RunFolderError(
                f"{self.config} cannot be read ({type(error).__name__})",
                "the file that the start of the run wrote",
                "take it from a checkpoint's manifest.json (facts, config) or from a copy",
            ) from error
        return dict(meta)
