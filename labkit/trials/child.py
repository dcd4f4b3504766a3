"""One run of a comparison in a fresh process: `python -m labkit.trials.child JOB`. Begin or go on, train, score.

The last weights are scored here, after the run has ended, so every budget compares the same moment, whatever the run's
own evaluations are. The result lies in trial.json in the run folder; it is written once the score is known.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit.config import GOALS, RunConfig
from labkit.errors import DataError, LabkitError
from labkit.evaluate import evaluate_state, metric_value
from labkit.files import write_text_durably
from labkit.run import Session, resume, start
from labkit.run.folder import RunFolder

RESULT = "trial.json"
STOPPED = 3


@dataclass(frozen=True)
class Job:
    """One run: its recipe, its folder, and all settings, the budget among them."""

    recipe: str
    folder: str
    settings: dict[str, Any]

    def text(self) -> str:
        return json.dumps(asdict(self))


def work(job: Job) -> int:
    """0 when the result is written, STOPPED when the run was told to stop before its budget was spent."""
    folder = RunFolder(Path(job.folder))
    goals = {name: value for name, value in job.settings.items() if name in GOALS}
    opened = resume(folder.path, **goals) if folder.exists() else start(job.recipe, folder.path, **job.settings)
    with opened as session:
        outcome = session.train()
        if outcome.status == "stopped":
            return STOPPED
        write_text_durably(folder.path / RESULT, json.dumps(_score(session)) + "\n")
    return 0


def _score(session: Session) -> dict[str, Any]:
    engine, splits, config = session.engine, session.parts.splits, session.config
    if splits.validation is None or not len(splits.validation):
        raise DataError("there is no validation split", "one, to compare on", "give the recipe one")
    with engine.working():
        totals = evaluate_state(engine.state, session.parts.recipe, config, splits.train, splits.validation)
    assert totals is not None  # nobody was asked whether to stop
    metric_value(config, totals)  # raises when it is not measured
    total, counters = totals[config.metric], engine.state.counters
    return {
        "key": key(config), "metric": config.metric, "sum": total.sum, "count": total.count,
        "update": counters.committed, "examples": counters.examples, "tokens": counters.tokens,
        "seconds": session.seconds_used,
    }  # fmt: skip


def key(config: RunConfig) -> dict[str, Any]:
    """What a stored result must agree in to be used again: everything that decides a trajectory, and the budget."""
    return {"fingerprint": config.fingerprint, **{name: getattr(config, name) for name in GOALS}}


def main(text: str) -> int:
    """Do the job that the text describes."""
    try:
        return work(Job(**json.loads(text)))
    except LabkitError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
