"""One fresh process of a lesson: resume a run folder, leave out what should be lost, run on, write down what was seen.

`python -P resume_child.py JOB`; started by labkit.lab.fresh. It is run by its path, so that it does not have to import
the plotting that the rest of lab/ needs. Lesson 00.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labkit import randomness
from labkit.engine import open_engine
from labkit.errors import ProofError
from labkit.evaluate import evaluate
from labkit.proof.pieces import PIECES
from labkit.run import Session, resume

PROBE_EXAMPLES = 256


class Watch:
    """Looks at a session after each attempt and changes nothing: loss of a fixed probe set, and the parameters.

    probe: mean loss (nats) of the first 256 training examples in eval mode; parameters: one flat float32 array each.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.probe: list[float] = []
        self.parameters: list[np.ndarray] = []
        train = session.parts.splits.train
        self._examples = torch.utils.data.Subset(train, range(min(PROBE_EXAMPLES, len(train))))
        session.observers.append(self._look)

    def _look(self, _record: Any) -> None:
        model = self.session.state.model
        totals = evaluate(model, self.session.parts.recipe, self._examples, batch_size=PROBE_EXAMPLES)
        assert totals is not None  # nothing tells it to stop
        self.probe.append(totals["loss"].mean)
        flat = [p.detach().reshape(-1).float() for p in model.parameters() if p.requires_grad]
        self.parameters.append(torch.cat(flat).numpy().copy())

    def save(self, path: Path) -> None:
        """Write both as numpy arrays."""
        np.savez(path, probe=np.array(self.probe), parameters=np.array(self.parameters))


def lose(session: Session, pieces: Sequence[str]) -> None:
    """Put pieces of the session's state back to what a run that was only just built has; the records say so.

    Raises ProofError for a piece that does not exist or that this recipe does not keep.
    """
    if not pieces:
        return
    unknown = [name for name in pieces if name not in PIECES]
    if unknown:
        raise ProofError(f"there is no piece called {unknown[0]!r}", "one of " + ", ".join(PIECES), "")
    saved = session.capture()
    with open_engine(session.parts.recipe, session.config) as new:
        fresh = new.capture()
    for name in pieces:
        if not PIECES[name](saved, fresh):
            raise ProofError(f"this recipe keeps no {name}", "a piece that it has", "")
    session.engine.restore(saved)
    session.remark("pieces lost on purpose", pieces=list(pieces))


def main(job: Path) -> int:
    """Do the job in the file: {"folder", "updates", "lost", "out"}."""
    asked = json.loads(job.read_text(encoding="utf-8"))
    randomness.seed_all("not the run's", int.from_bytes(os.urandom(6), "big"))  # only what was saved may win
    with resume(asked["folder"], updates=asked["updates"]) as session:
        lose(session, asked["lost"])
        watch = Watch(session)
        session.train()
    watch.save(Path(asked["out"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
