"""A short measured sample of the run that is planned, in a run folder of its own on the same disk. Lesson 08.

What is timed is what a run does: fetch, update, write records; then evaluations and durable saves of the real state.
The first updates are warm-up (allocation, caches, compilation) and are reported apart.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labkit import randomness
from labkit.config import RunConfig
from labkit.device import peak_memory_bytes, synchronize, to_device
from labkit.engine import Engine
from labkit.evaluate import evaluate_state
from labkit.loading import fetch
from labkit.recipe import Recipe
from labkit.run import Session, start
from labkit.trials import t_95

WARM_UP = 5
BLOCKS = 10
FEWEST_BLOCKS = 3


@dataclass(frozen=True)
class Measured:
    """Seconds, with the half width of a 95% interval of the mean update; bytes of one checkpoint and one record."""

    update: float
    update_half_width: float
    first_update: float  # what a forecast from the first update alone would have used
    warm_up: float  # the first updates together, the very first included
    evaluation: float
    save: float
    checkpoint_bytes: int
    record_bytes: float  # of all record files, for each update
    examples_per_update: float
    tokens_per_update: float
    updates_sampled: int


@dataclass(frozen=True)
class Sample:
    """What a sample found: times, memory by kind (bytes), and the length of the training split."""

    measured: Measured
    memory_bytes: dict[str, int]
    length: int


def sample(
    recipe: Recipe, name: str, config: RunConfig, sample_seconds: float, folder: Path, most_updates: int | None,
    progress: Callable[[str], None],
) -> Sample:  # fmt: skip
    """Train for about sample_seconds in a temporary run folder below `folder`, which is removed again.

    most_updates: stop sampling there, because the planned run is no longer than that; None: not known yet.
    Raises what a run of these settings would raise.
    """
    with tempfile.TemporaryDirectory(prefix=".plan-", dir=folder) as place:
        progress("preparing")
        settings = {n: v for n, v in config.to_dict().items() if n not in {"recipe", "options"}}
        quiet = {"save": "foreground", "save_every": 0, "save_seconds": None, "save_epoch_end": False}
        with start(recipe, Path(place) / "run", reference=name, **{**config.options, **settings, **quiet}) as session:
            measured = _measure(session, sample_seconds, most_updates, progress)
            return Sample(measured, memory_by_kind(session.engine), len(session.parts.splits.train))


def _measure(
    session: Session, sample_seconds: float, most_updates: int | None, progress: Callable[[str], None]
) -> Measured:
    where = next(session.state.model.parameters()).device
    progress("warm-up")
    first, warm_up, rough = _warm_up(session, where, sample_seconds / 4)
    per_block = max(1, round(sample_seconds / BLOCKS / max(rough, 1e-6)))
    if most_updates is not None:
        per_block = max(1, min(per_block, most_updates // BLOCKS))
    counters = session.state.counters
    before = (counters.examples, counters.tokens, counters.committed)
    blocks: list[float] = []
    until = time.perf_counter() + sample_seconds
    while len(blocks) < FEWEST_BLOCKS or (len(blocks) < BLOCKS and time.perf_counter() < until):
        progress(f"sample {len(blocks) + 1} of {BLOCKS}")
        blocks.append(timed(lambda: session.sample(per_block), where) / per_block)
    made = max(counters.committed - before[2], 1)
    examples, tokens = (counters.examples - before[0]) / made, (counters.tokens - before[1]) / made
    half = t_95(len(blocks) - 1) * statistics.stdev(blocks) / math.sqrt(len(blocks))
    progress("evaluations and saves")
    evaluation = _evaluation(session, where) if session.config.eval_every else 0.0
    save, checkpoint, records = _saves(session, where)
    return Measured(
        update=statistics.fmean(blocks), update_half_width=half, first_update=first, warm_up=warm_up,
        evaluation=evaluation, save=save, checkpoint_bytes=checkpoint,
        record_bytes=records / max(counters.committed, 1), examples_per_update=examples, tokens_per_update=tokens,
        updates_sampled=per_block * len(blocks),
    )  # fmt: skip


def _warm_up(session: Session, where: torch.device, at_most: float) -> tuple[float, float, float]:
    """Seconds of the first update, of all warm-up updates, and of the last of them."""
    first = last = total = timed(lambda: session.sample(1), where)
    for _ in range(WARM_UP - 1):
        if total > at_most and total > first:
            break
        last = timed(lambda: session.sample(1), where)
        total += last
    return first, total, last


def _evaluation(session: Session, where: torch.device) -> float:
    """Seconds of one evaluation, the median of three; the first of the process is no slower than others by much."""
    parts, engine = session.parts, session.engine

    def once() -> None:
        with engine.working():
            evaluate_state(engine.state, parts.recipe, session.config, parts.splits.train, parts.splits.validation)

    return statistics.median(timed(once, where) for _ in range(3))


def _saves(session: Session, where: torch.device) -> tuple[float, int, int]:
    """Seconds of one durable, verified save (median of three), bytes of one checkpoint, bytes of all record files."""
    seconds = []
    for _ in range(3):
        session.sample(1)  # a save at the same update would replace the one before
        seconds.append(timed(lambda: session.publish("plan"), where))
    newest = session.store.newest().path
    checkpoint = sum(file.stat().st_size for file in newest.iterdir())
    records = sum(file.stat().st_size for file in session.folder.path.iterdir() if file.suffix == ".jsonl")
    return statistics.median(seconds), checkpoint, records


def timed(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds of work, with whatever was queued on an accelerator before and by it finished."""
    synchronize(device)
    start_time = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - start_time


# --- memory -----------------------------------------------------------------------------------------------------------


def memory_by_kind(engine: Engine) -> dict[str, int]:
    """Bytes of the real tensors by kind, after an update: shared memory once. "peak of process" is measured apart.

    activations: what autograd keeps for the backward pass of the largest microbatch, parameters excluded.
    """
    state = engine.state
    parameters = list(state.model.parameters())
    remembered = [v for values in state.optimizer.state.values() for v in values.values() if isinstance(v, Tensor)]
    batch = _largest_batch(engine)
    kinds = {
        "parameters": _bytes(parameters),
        "gradients": _bytes([p.grad for p in parameters if p.grad is not None]),
        "optimizer": _bytes(remembered),
        "buffers": _bytes(list(state.model.buffers())),
        "average": _bytes(list(state.ema.state_dict()["average"].values())) if state.ema else 0,
        "batch": _bytes(list(_tensors(batch))),
        "activations": _activations(engine, batch, parameters),
    }
    peak = peak_memory_bytes(parameters[0].device)
    used = {kind: count for kind, count in kinds.items() if count}
    return used if peak is None else {**used, "peak of process": peak}


def _largest_batch(engine: Engine) -> Any:
    config, train = engine.config, engine.parts.splits.train
    size = min(max(config.microbatch_size, default=config.batch_size), config.batch_size, len(train))
    with _untouched(engine):
        return to_device(fetch(train, engine.parts.recipe.collate, np.arange(size)), config.device)


def _activations(engine: Engine, batch: Any, parameters: list[Any]) -> int:
    """Storage that one forward pass leaves for backward, seen by autograd's own hooks."""
    known = {p.untyped_storage().data_ptr() for p in [*parameters, *engine.state.model.buffers()]}
    known |= {t.untyped_storage().data_ptr() for t in _tensors(batch)}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with _untouched(engine), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with engine.state.precision.autocast():
            loss, _ = engine.parts.recipe.objective(engine.state.model, batch)
        del loss
    return sum(kept.values())


@contextmanager
def _untouched(engine: Engine) -> Iterator[None]:
    """Nothing of the run moves: neither its streams nor the buffers that a forward pass in training mode writes."""
    buffers = [(buffer, buffer.clone()) for buffer in engine.state.model.buffers()]
    with engine.working(), randomness.preserved(engine.state.generators, engine.state.devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, kept in buffers:
                    buffer.copy_(kept)


def _bytes(tensors: list[Any]) -> int:
    """Bytes of these tensors' storage, shared storage once."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
