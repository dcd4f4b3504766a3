"""What one process of a proof is asked to do, as a file that it reads. Lesson 04."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """One process: mode "start" begins a run, "continue" resumes one, both write `log`; copies are taken at `stops`.

    Boundaries are counted in attempts, which are updates unless an attempt was skipped. until ends a part of a chain.
    """

    mode: str
    folder: str
    log: str
    recipe: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    stops: dict[str, str] = field(default_factory=dict)  # boundary -> folder that receives a copy of the run there
    until: int | None = None
    look: list[int] = field(default_factory=list)  # boundaries at which reachable attributes are listed
    look_log: str = ""
    transplant: str = ""  # file of values to put into the recipe's objects after the resume

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        return cls(**json.loads(path.read_text(encoding="utf-8")))
