"""Times of this machine, taken now, beside a small recorded set; and failures, simulated. Lesson 08."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labkit.errors import ProofError
from labkit.lab import timing_child
from labkit.lab.plots.budget import PARTS
from labkit.plan import Plan, plan
from labkit.plan.arithmetic import saves_in
from labkit.recipes import digits
from labkit.run import start

BATCHES, INTERVALS = (8, 64, 512), (5, 20, 50, 100, 200)
NETWORKS: dict[str, Callable[[], torch.nn.Module]] = {"mlp": digits.mlp, "conv": digits.conv}
WHAT: dict[str, dict[str, Any]] = {"as it is": {}, "shifted, noisy images": {"augment": True}}
RUN: dict[str, Any] = {"updates": 200, "eval_every": 40}

_PART_OF = {
    "data": "data", "transfer": "data", "first forward": "forward", "forward": "forward", "backward": "backward",
    "measure": "backward", "optimizer": "optimizer", "ema": "optimizer", "evaluation": "evaluation", "publish": "save",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Timings:
    """Seconds, and the machine they belong to, in words.

    update: (network, batch size) -> one update; first: the first updates of a fresh process, in order; parts: what was
    run -> seconds by part; runs: save interval -> (planned, measured) seconds by part of a run of 200 updates.
    """

    machine: str
    update: Mapping[tuple[str, int], float]
    first: Sequence[float]
    parts: Mapping[str, Mapping[str, float]]
    runs: Mapping[int, tuple[Mapping[str, float], Mapping[str, float]]]


def first_updates(count: int = 12) -> list[float]:
    """Seconds of the first updates of a new Python process, one by one. Raises ProofError when it fails."""
    labkit_at = str(Path(__file__).resolve().parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([labkit_at, *(path for path in sys.path if path)])}
    done = subprocess.run(
        [sys.executable, "-P", str(Path(timing_child.__file__).resolve()), str(count)],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env, start_new_session=os.name == "posix",
    )  # fmt: skip
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise ProofError(f"the timing process failed: {said[-1] if said else done.returncode}", "a list of times", "")
    return [float(seconds) for seconds in json.loads(done.stdout)]


def alternately(works: Mapping[Any, Callable[[], Any]], rounds: int, clock: Callable[[], float]) -> dict[Any, float]:
    """Seconds of each work: the fastest fifth of so many rounds, taken in turns so that a busy moment slows all alike.

    Not the mean, not the median: what else runs on a machine can make an update longer, never shorter.
    """
    seconds: dict[Any, list[float]] = {name: [] for name in works}
    for number in range(rounds + 2):
        for name, work in works.items():
            begun = clock()
            work()
            if number >= 2:  # the first two of each warm things up
                seconds[name].append(clock() - begun)
    return {name: float(np.quantile(values, 0.2)) for name, values in seconds.items()}


def by_part(stages: Mapping[str, float]) -> dict[str, float]:
    """Seconds of a stage profile, summed into PARTS."""
    found = dict.fromkeys(PARTS, 0.0)
    for name, seconds in stages.items():
        found[_PART_OF.get(name, "other")] += seconds
    return found


def run_by_part(recipe: str, folder: Path, **settings: Any) -> dict[str, float]:
    """Really run a recipe in a new folder, and return the seconds of each part of it, its first save included."""
    with start(recipe, folder, profile=True, **settings) as session:
        session.train()
        assert session.profile is not None
        return by_part(session.profile.seconds)


def plan_by_part(plan: Plan, sampled: Mapping[str, float], saves: int) -> dict[str, float]:
    """The seconds of a plan with so many saves; its updates are divided as in a sample of nothing but updates."""
    work = {name: sampled[name] for name in PARTS if name not in {"evaluation", "save"}}
    scale = plan.updates * plan.measured.update / sum(work.values())
    parts = {name: seconds * scale for name, seconds in work.items()}
    parts |= {"evaluation": plan.evaluations * plan.measured.evaluation, "save": saves * plan.measured.save}
    return {name: parts[name] for name in PARTS}


def simulated(interval: float, save: float, mean: float, work: float = 4e6, seed: int = 0) -> float:
    """Simulated extra time of a run that fails at random, as a part of its undisturbed time. All in one unit, updates.

    Every `interval` of work ends in a save; a failure loses what came after the last one. A stretch of work and save
    is tried until no failure hits it: the number of broken tries is drawn, then how far each of them came.
    """
    rng = np.random.default_rng([seed, round(save), round(mean)])
    stretches, whole = math.ceil(work / interval), interval + save
    survives = math.exp(-whole / mean)
    broken = int(rng.negative_binomial(stretches, survives))
    lost = -mean * np.log1p(-rng.random(broken) * (1 - survives))
    return float((stretches * whole + lost.sum()) / (stretches * interval) - 1)


def record(machine: str, folder: Path) -> Timings:
    """Take the whole set on this machine; `folder` is empty and gets the runs. About ten seconds when it is quiet."""
    works = {(name, size): _update(network, size) for name, network in NETWORKS.items() for size in BATCHES}
    parts = {
        name: run_by_part("digits", folder / f"parts-{n}", updates=100, **settings)
        for n, (name, settings) in enumerate(WHAT.items())
    }
    return Timings(
        machine=machine, update=alternately(works, 60, time.perf_counter), first=first_updates(), parts=parts,
        runs=planned_and_run(folder),
    )  # fmt: skip


def planned_and_run(
    folder: Path, intervals: Sequence[int] = INTERVALS
) -> dict[int, tuple[dict[str, float], dict[str, float]]]:
    """Save interval -> (planned, measured) seconds by part of a run of 200 updates with 5 evaluations.

    The plan is made once, from a short sample; then the run is really made with each interval.
    """
    made = plan("digits", sample_seconds=0.5, folder=folder, **RUN)
    sampled = run_by_part("digits", folder / "sampled", updates=60)
    found = {}
    for every in intervals:
        saves = saves_in(RUN["updates"], every) + made.best_saves
        real = run_by_part("digits", folder / f"every-{every}", save_every=every, **RUN)
        found[every] = (plan_by_part(made, sampled, saves), real)
    return found


def _update(network: Callable[[], torch.nn.Module], size: int) -> Callable[[], Any]:
    """One plain PyTorch update on a batch of so many digits."""
    torch.manual_seed(0)
    data, model = digits.load("train"), network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    rows = torch.arange(size)

    def update() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(data.images[rows]), data.labels[rows]).backward()
        optimizer.step()

    return update
