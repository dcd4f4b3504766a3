"""Before a long run: a short measured sample, and the arithmetic from it to hours, money, memory and disk. Lesson 08.

updates = epochs x ceil(examples / batch); seconds = updates x seconds per update + evaluations + saves; device hours =
hours x devices; cost = device hours x price. Everything measured is measured here, on this machine, now.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit.checkpoint import CheckpointStore, payload_bytes
from labkit.config import RunConfig
from labkit.device import peak_memory_bytes, synchronize
from labkit.engine import Engine, open_engine
from labkit.errors import PlanError
from labkit.evaluate import evaluate_state
from labkit.recipe import Recipe, resolve
from labkit.recipes import find
from labkit.records.attempts import read_attempts
from labkit.run.folder import RunFolder
from labkit.trials import t_95

WARM_UP = 5
BLOCKS = 10
FORMAT = 1


@dataclass(frozen=True)
class Measured:
    """Seconds, with the half width of a 95% interval of the mean where several were taken."""

    update: float
    update_half_width: float
    first_update: float  # what a forecast from the first update alone would have used
    evaluation: float
    save: float
    checkpoint_bytes: int
    updates_sampled: int


@dataclass(frozen=True)
class Interval:
    """How often to save. overhead is the expected share of time lost to saves and repeated work."""

    updates: int
    seconds: float
    flat_from: int  # anything from here ...
    flat_to: int  # ... to here costs at most one percentage point more
    overhead: float
    limited_by: str  # "the formula", "the tolerated loss", "the length of the run"


@dataclass(frozen=True)
class Plan:
    """What a run will take. Counts are exact; seconds come from a sample on the machine named in `machine`."""

    recipe: str
    fingerprint: str
    updates: int
    epochs: float
    examples: int
    evaluations: int
    saves: int
    measured: Measured
    seconds: float
    seconds_half_width: float
    devices: int
    device_hours: float
    price: float | None
    currency: str
    cost: float | None
    memory_bytes: dict[str, int]
    disk_bytes: int
    interval: Interval | None
    machine: str

    def sentence(self) -> str:
        """One sentence a person can act on."""
        text = f"{self.updates} updates take about {_time(self.seconds)} (within {_time(self.seconds_half_width)})"
        if self.cost is not None:
            text += f" and cost about {self.cost:.2f} {self.currency}"
        text += f"; keep {_size(self.disk_bytes)} of disk free"
        if self.interval is not None:
            near = f"anything from {self.interval.flat_from} to {self.interval.flat_to} is nearly as good"
            text += f", and save every {self.interval.updates} updates ({near})"
        return text + "."

    def __str__(self) -> str:
        m = self.measured
        rows = [
            ("updates", f"{self.updates} ({self.epochs:g} epochs, {self.examples} examples)"),
            ("one update", f"{_time(m.update)} +/- {_time(m.update_half_width)} ({m.updates_sampled} sampled)"),
            ("throughput", f"{self.examples / self.updates / m.update:.4g} examples/s"),
            ("evaluations", f"{self.evaluations}, each {_time(m.evaluation)} ({m.evaluation / m.update:.2g} updates)"),
            ("saves", f"{self.saves}, each {_time(m.save)} ({m.save / m.update:.2g} updates)"),
            ("time", f"{_time(self.seconds)} +/- {_time(self.seconds_half_width)}"),
            ("device hours", f"{self.device_hours:.4g} ({self.devices} device{'s' if self.devices != 1 else ''})"),
            ("memory", ", ".join(f"{kind} {_size(size)}" for kind, size in self.memory_bytes.items())),
            ("disk", f"{_size(self.disk_bytes)} for what retention holds; one checkpoint {_size(m.checkpoint_bytes)}"),
        ]  # fmt: skip
        if self.cost is not None:
            rows.append(("cost", f"{self.cost:.2f} {self.currency}"))
        if self.interval is not None:
            rows.append(("save every", f"{self.interval.updates} updates ({self.interval.limited_by})"))
        return "\n".join([*(f"{name:<13} {text}" for name, text in rows), self.sentence()])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"format": FORMAT, **asdict(self), "sentence": self.sentence()}

    def store(self, path: Path) -> None:
        """Write the plan as JSON, for `plan --check`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")


def plan(
    recipe: str | Recipe, *, price: float | None = None, currency: str = "EUR", devices: int = 1,
    failures_per_day: float | None = None, tolerate_seconds: float | None = None, sample_seconds: float = 3.0,
    folder: Path | str = ".", progress: Callable[[str], None] = lambda text: None, **settings: Any,
) -> Plan:  # fmt: skip
    """Measure a sample of the run that the settings describe, and plan the whole of it.

    price: for one device and hour. failures_per_day, tolerate_seconds: give a checkpoint interval. folder: on the disk
    that will hold the run. Raises PlanError for numbers that mean nothing, ConfigError and relatives for settings.
    """
    _check_numbers(price=price, devices=devices, failures_per_day=failures_per_day, tolerate_seconds=tolerate_seconds)
    found = find(recipe) if isinstance(recipe, str) else recipe
    name = recipe if isinstance(recipe, str) else f"object:{type(recipe).__qualname__}"
    config = resolve(found, name, settings)
    length = len(found.splits(config).train)
    updates = planned_updates(config, length)
    with open_engine(found, config) as engine:
        measured = _measure(engine, sample_seconds, Path(folder), updates, progress)
        memory = memory_by_kind(engine)
    interval = None
    if failures_per_day is not None or tolerate_seconds is not None:
        mean = 86400 / failures_per_day if failures_per_day else math.inf
        interval = save_interval(measured.save, mean, measured.update, updates, tolerate_seconds)
    every = config.save_every or (interval.updates if interval else 0)
    saves = 1 + (updates // every if every else 0) + (1 if not every or updates % every else 0)
    evaluations = updates // config.eval_every if config.eval_every else 0
    seconds = updates * measured.update + evaluations * measured.evaluation + saves * measured.save
    hours = seconds / 3600 * devices
    per_epoch = updates_per_epoch(length, config.batch_size)
    held = config.keep + 2 + (updates // config.milestone_every if config.milestone_every else 0)
    return Plan(
        name, config.fingerprint, updates, updates / per_epoch, examples_in(updates, length, config.batch_size),
        evaluations, saves, measured, seconds, updates * measured.update_half_width, devices, hours, price, currency,
        None if price is None else hours * price, memory, held * measured.checkpoint_bytes, interval, _machine(config),
    )  # fmt: skip


def _check_numbers(**numbers: float | None) -> None:
    for name, value in numbers.items():
        if value is not None and (not math.isfinite(value) or value < 0 or (name == "devices" and value < 1)):
            raise PlanError(f"{name}={value}", "a finite number, not negative", "correct it")


def updates_per_epoch(examples: int, batch_size: int) -> int:
    """ceil(examples / batch): the short last batch of an epoch is an update too."""
    return -(-examples // batch_size)


def examples_in(updates: int, examples: int, batch_size: int) -> int:
    """Examples that so many updates consume; an epoch's last update is short."""
    epochs, rest = divmod(updates, updates_per_epoch(examples, batch_size))
    return epochs * examples + min(rest * batch_size, examples)


def planned_updates(config: RunConfig, length: int) -> int:
    """Updates to the target: of updates, epochs and examples what is reached first. Raises PlanError for none."""
    per_epoch = updates_per_epoch(length, config.batch_size)
    goals = []
    if config.updates is not None:
        goals.append(config.updates)
    if config.epochs is not None:
        goals.append(config.epochs * per_epoch)
    if config.examples is not None:
        epochs, rest = divmod(config.examples, length)
        goals.append(epochs * per_epoch + updates_per_epoch(rest, config.batch_size))
    if not goals or min(goals) < 1:
        raise PlanError("there is nothing to plan", "a target of one update or more", "give --updates or --epochs")
    return min(goals)


def _measure(
    engine: Engine, sample_seconds: float, folder: Path, updates: int, progress: Callable[[str], None]
) -> Measured:
    """Blocks of updates after a warm-up; then three evaluations and three durable saves of the real state."""
    device = engine.parts.state.model
    where = next(device.parameters()).device
    progress("warm-up")
    with engine.working():
        first = _timed(engine.update, where)
        for _ in range(WARM_UP - 1):
            engine.update()
        rough = _timed(engine.update, where)
        per_block = max(1, min(updates, int(sample_seconds / BLOCKS / max(rough, 1e-6))))
        blocks = []
        for number in range(BLOCKS):
            progress(f"sample {number + 1} of {BLOCKS}")
            blocks.append(_timed(lambda: [engine.update() for _ in range(per_block)], where) / per_block)
        evaluation = 0.0
        if engine.config.eval_every:
            splits = engine.parts.splits
            evaluation = statistics.median(
                _timed(lambda: evaluate_state(engine.state, engine.parts.recipe, engine.config, splits.train,
                                              splits.validation), where)
                for _ in range(3)
            )  # fmt: skip
        progress("saves")
        payload = engine.state.capture()
        size = payload_bytes(payload)
        with tempfile.TemporaryDirectory(prefix=".plan-", dir=folder) as place:
            store = CheckpointStore(Path(place) / "checkpoints")
            saves = [_timed(functools.partial(store.publish, number, payload, {}), where) for number in range(3)]
            save = statistics.median(saves)
    half = t_95(len(blocks) - 1) * statistics.stdev(blocks) / math.sqrt(len(blocks))
    return Measured(statistics.fmean(blocks), half, first, evaluation, save, size, per_block * BLOCKS)


def _timed(work: Callable[[], Any], device: Any) -> float:
    """Seconds, with whatever was queued on an accelerator finished."""
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - start


def memory_by_kind(engine: Engine) -> dict[str, int]:
    """Bytes of the real tensors after an update, by kind, and the process's peak."""
    state = engine.state
    parameters = list(state.model.parameters())
    remembered = [value for values in state.optimizer.state.values() for value in values.values()]
    kinds = {
        "parameters": sum(map(_bytes, parameters)),
        "gradients": sum(_bytes(p.grad) for p in parameters if p.grad is not None),
        "optimizer": sum(_bytes(value) for value in remembered if hasattr(value, "nbytes")),
        "buffers": sum(map(_bytes, state.model.buffers())),
        "average": sum(map(_bytes, state.ema.state_dict()["average"].values())) if state.ema else 0,
    }
    peak = peak_memory_bytes(parameters[0].device)
    used = {kind: size for kind, size in kinds.items() if size}
    return used if peak is None else {**used, "peak of process": peak}


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def save_interval(
    save_seconds: float, failures_mean_seconds: float, update_seconds: float, run_updates: int,
    tolerate_seconds: float | None = None,
) -> Interval:  # fmt: skip
    """Young's interval sqrt(2 x save cost x mean time between failures), in whole updates (Young 1974, CACM 17(9)).

    Shorter if the tolerated loss asks for it, never longer than the run, never less than one update. Expected overhead
    of an interval t: save / t + t / (2 x mean), to first order, flat around its minimum.
    """
    _check_numbers(save_seconds=save_seconds, update_seconds=update_seconds, tolerate_seconds=tolerate_seconds)
    if not update_seconds > 0:
        raise PlanError(f"update_seconds={update_seconds}", "more than 0", "measure an update first")
    best = math.sqrt(2 * save_seconds * failures_mean_seconds)
    seconds, limited = best, "the formula"
    if tolerate_seconds is not None and tolerate_seconds < seconds:
        seconds, limited = tolerate_seconds, "the tolerated loss"
    if run_updates * update_seconds < seconds:
        seconds, limited = run_updates * update_seconds, "the length of the run"
    updates = max(1, math.floor(seconds / update_seconds + 1e-9))

    def overhead(t: float) -> float:
        return save_seconds / t + t / (2 * failures_mean_seconds)

    chosen = updates * update_seconds
    level = overhead(best) + 0.01 if 0 < best < math.inf else overhead(chosen)
    low, high = _flat(save_seconds, failures_mean_seconds, level)
    flat_from = max(1, min(updates, math.ceil(low / update_seconds)))
    flat_to = max(updates, min(run_updates, math.floor(high / update_seconds) if math.isfinite(high) else run_updates))
    if limited == "the tolerated loss":
        flat_to = updates
    return Interval(updates, chosen, flat_from, flat_to, overhead(chosen), limited)


def _flat(save: float, mean: float, level: float) -> tuple[float, float]:
    """Where save / t + t / (2 mean) stays below a level: the two roots of t^2 - 2 mean level t + 2 mean save = 0."""
    if math.isinf(mean):
        return (save / level if level else 0.0), math.inf
    middle = mean * level
    root = math.sqrt(max(0.0, middle * middle - 2 * mean * save))
    return middle - root, middle + root


def _machine(config: RunConfig) -> str:
    import platform

    return f"{platform.machine()}, {config.device}, threads {config.threads}"


@dataclass(frozen=True)
class Check:
    """A plan beside what happened. ratio is real over planned seconds, scaled to the updates that were made."""

    planned_seconds: float
    real_seconds: float
    planned_updates: int
    real_updates: int
    ratio: float

    @property
    def within(self) -> bool:
        """Within 25% of the plan."""
        return 0.75 <= self.ratio <= 1.25

    def __str__(self) -> str:
        word = "as planned" if self.within else "slower than planned" if self.ratio > 1 else "faster than planned"
        return (
            f"{self.real_updates} updates took {_time(self.real_seconds)}; the plan said {_time(self.planned_seconds)} "
            f"for so many: {self.ratio:.2f} times, {word}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "within": self.within}


def check(run: Path | str, plans: Path | str = "plans") -> Check:
    """Compare a run with its stored plan: plan.json in the run folder, or the one for its config in `plans`.

    Raises PlanError when there is no plan for this config, or the run has not ended an attempt yet.
    """
    folder = RunFolder(Path(run))
    config = folder.read_config()
    candidates = [folder.path / "plan.json", Path(plans) / f"{config.fingerprint[:16]}.json"]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        wanted = " or ".join(map(str, candidates))
        raise PlanError(f"there is no plan for {folder.name}", wanted, "make one: labkit plan")
    stored = json.loads(path.read_text(encoding="utf-8"))
    if stored.get("fingerprint") != config.fingerprint:
        raise PlanError(f"{path} is the plan of another config", "the plan of this run", "plan with the run's settings")
    ends = [attempt.end["measured"] for attempt in read_attempts(folder.path) if attempt.end.get("measured")]
    updates = max((end["updates"] for end in ends), default=0)
    if not updates:
        raise PlanError(f"{folder.name} has made no update yet", "a run that has ended or stopped", "check again later")
    planned = float(stored["seconds"]) * updates / int(stored["updates"])
    real = max(float(end["seconds_used"]) for end in ends)
    return Check(planned, real, int(stored["updates"]), updates, real / planned)


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.3g} {unit}"
        size /= 1000
    raise AssertionError
