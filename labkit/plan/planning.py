"""The plan itself: what a run of these settings will take, in one table and one sentence. Lesson 08."""

from __future__ import annotations

import hashlib
import html
import json
import math
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit.config import RunConfig
from labkit.errors import PlanError
from labkit.files import write_text_durably
from labkit.plan.arithmetic import check_numbers, ending, examples_in, saves_in, updates_per_epoch
from labkit.plan.interval import Interval, save_interval
from labkit.plan.measure import Measured, sample
from labkit.plan.words import duration, money, size
from labkit.recipe import Recipe, resolve
from labkit.recipes import find

FORMAT = 1
UNTIMED = frozenset(
    {"recipe", "options", "seed", "rate", "weight_decay", "schedule", "schedule_clock", "schedule_factor"}
    | {"schedule_interval", "warmup", "horizon", "floor", "metric", "mode", "patience", "min_improvement"}
    | {"initial_scale", "growth_interval"}
)
"""Settings that decide where a trajectory goes, but not how long an update of it takes."""
ALSO_TIMED = ("device", "threads", "workers", "tensorboard", "profile", "monitor_every", "histograms_every")
"""Settings outside of a run's identity that change how long it takes."""


@dataclass(frozen=True)
class Plan:
    """What a run will take. Counts are exact; seconds come from a sample on the machine named in `machine`."""

    recipe: str
    key: str  # of all settings that decide how long an update takes: plan_key()
    settings: dict[str, Any]
    updates: int
    ends_by: str  # the goal that is reached first
    epochs: float
    examples: int
    evaluations: int
    saves: int  # at the start, at intervals, at the end
    best_saves: int  # expected besides: an evaluation that is the best so far is saved too
    save_every: int  # as set, or as recommended by `interval`; 0: only at the start and at the end
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
    checkpoints_held: int
    interval: Interval | None
    machine: str

    def sentence(self) -> str:
        """One sentence a person can act on."""
        text = f"{self.updates} updates take about {duration(self.seconds)}"
        text += f" (within {duration(self.seconds_half_width)})"
        if self.devices > 1:
            text += f" on {self.devices} devices, {self.device_hours:.3g} device hours,"
        if self.cost is not None:
            about = "" if 0 < self.cost < 0.01 else "about "
            text += f" and cost {about}{money(self.cost, self.currency)}"
        text += f"; keep {size(self.disk_bytes)} of disk free"
        if self.interval is not None:
            text += f", and {self.interval}"
        return text + "."

    def __str__(self) -> str:
        return "\n".join([*(f"{name:<13} {text}" for name, text in self._rows()), self.sentence()])

    def _rows(self) -> list[tuple[str, str]]:
        m = self.measured
        low, high = m.update - m.update_half_width, m.update + m.update_half_width
        slowest = f" to {m.examples_per_update / low:.4g}" if low > 0 else " or more"
        rows = [
            ("updates", f"{self.updates} ({self.epochs:.4g} epochs, {self.examples} examples), ends by {self.ends_by}"),
            ("one update", f"{duration(m.update)} +/- {duration(m.update_half_width)} ({m.updates_sampled} sampled; "
                           f"the very first took {duration(m.first_update)})"),
            ("throughput", f"{m.examples_per_update / high:.4g}{slowest} examples/s, "
                           f"{m.tokens_per_update / m.update:.4g} tokens/s"),
            ("evaluations", f"{self.evaluations}, each {duration(m.evaluation)}" + _as_updates(m.evaluation, m.update)),
            ("saves", f"{self.saves}" + (f" and {self.best_saves} of a best evaluation" if self.best_saves else "")
                      + f", each {duration(m.save)}" + _as_updates(m.save, m.update)),
            ("time", f"{duration(self.seconds)} +/- {duration(self.seconds_half_width)}: updates "
                     f"{duration(self.updates * m.update)}, evaluations {duration(self.evaluations * m.evaluation)}, "
                     f"saves {duration((self.saves + self.best_saves) * m.save)}"),
            ("device hours", f"{self.device_hours:.4g} ({self.devices} device{'s' if self.devices != 1 else ''})"),
            ("memory", ", ".join(f"{kind} {size(count)}" for kind, count in self.memory_bytes.items())),
            ("disk", f"{size(self.disk_bytes)}: {self.checkpoints_held} checkpoints of {size(m.checkpoint_bytes)}, "
                     f"records {size(self.updates * m.record_bytes)}"),
        ]  # fmt: skip
        if self.cost is not None:
            rows.append(("cost", money(self.cost, self.currency)))
        if self.interval is not None:
            rows.append(("save every", f"{self.interval.updates} updates, {duration(self.interval.seconds)} "
                                       f"(set by {self.interval.limited_by}; flat from {self.interval.flat_from} to "
                                       f"{self.interval.flat_to}; overhead {self.interval.overhead:.2%})"))  # fmt: skip
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"format": FORMAT, **asdict(self), "sentence": self.sentence()}

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in self._rows())
        return f"<table>{rows}</table><p>{html.escape(self.sentence())}</p>"

    def store(self, path: Path) -> None:
        """Write the plan as JSON, for `plan --check`. Raises StorageError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_durably(path, json.dumps(self.to_dict(), indent=1) + "\n")


def plan(
    recipe: str | Recipe, *, price: float | None = None, currency: str = "EUR", devices: int = 1,
    failures_per_day: float | None = None, tolerate_seconds: float | None = None, sample_seconds: float = 3.0,
    folder: Path | str = ".", progress: Callable[[str], None] = lambda text: None, **settings: Any,
) -> Plan:  # fmt: skip
    """Measure a sample of the run that the settings describe, and plan the whole of it.

    price: for one device and hour. devices: how many are paid for while the run lasts; the time stays that of what was
    measured. failures_per_day, tolerate_seconds: give a checkpoint interval, which counts when save_every is not set.
    folder: on the disk that will hold the run. Raises PlanError for numbers that mean nothing, ConfigError and
    relatives for settings.
    """
    check_numbers(price=price, failures_per_day=failures_per_day, tolerate_seconds=tolerate_seconds)
    if not 0 < sample_seconds < math.inf or devices < 1:
        raise PlanError(f"devices={devices}, sample_seconds={sample_seconds}", "at least one, and above 0", "")
    found = find(recipe) if isinstance(recipe, str) else recipe
    name = recipe if isinstance(recipe, str) else f"object:{type(recipe).__qualname__}"
    config = resolve(found, name, settings)
    seen = sample(found, name, config, sample_seconds, Path(folder), config.updates, progress)
    m, per_epoch = seen.measured, updates_per_epoch(seen.length, config.batch_size)
    updates, ends_by = ending(config, seen.length, m.tokens_per_update, _share(config, m))
    interval = None
    if failures_per_day or tolerate_seconds is not None:
        mean = 86400 / failures_per_day if failures_per_day else math.inf
        interval = save_interval(m.save, mean, m.update, updates, tolerate_seconds)
    every = config.save_every or (interval.updates if interval else 0)
    counts = Counts.of(updates, config, every)
    seconds = counts.seconds(m)
    hours = seconds / 3600 * devices
    held = config.keep + 2 + (updates // config.milestone_every if config.milestone_every else 0)
    # the sample's interval, and that nobody knows how many evaluations will be the best so far
    half = math.hypot(updates * m.update_half_width, counts.best_saves * m.save)
    return Plan(
        recipe=name, key=plan_key(config), settings=config.to_dict(), updates=updates, ends_by=ends_by,
        epochs=updates / per_epoch, examples=examples_in(updates, seen.length, config.batch_size),
        evaluations=counts.evaluations, saves=counts.saves, best_saves=counts.best_saves, save_every=every, measured=m,
        seconds=seconds, seconds_half_width=half, devices=devices, device_hours=hours, price=price, currency=currency,
        cost=None if price is None else hours * price, memory_bytes=seen.memory_bytes,
        disk_bytes=round(held * m.checkpoint_bytes + updates * m.record_bytes), checkpoints_held=held,
        interval=interval, machine=_machine(config),
    )  # fmt: skip


@dataclass(frozen=True)
class Counts:
    """What so many updates bring with them."""

    updates: int
    evaluations: int
    saves: int
    best_saves: int

    @classmethod
    def of(cls, updates: int, config: RunConfig, save_every: int) -> Counts:
        """Evaluations and planned saves are exact; of the evaluations, half are expected to be the best so far."""
        evaluations = updates // config.eval_every if config.eval_every else 0
        return cls(updates, evaluations, saves_in(updates, save_every), -(-evaluations // 2))

    def seconds(self, m: Measured) -> float:
        return self.updates * m.update + self.evaluations * m.evaluation + (self.saves + self.best_saves) * m.save


def _share(config: RunConfig, m: Measured) -> float:
    """Seconds of an update with its share of evaluations and saves: what a target in seconds is divided by."""
    evaluation = (m.evaluation + m.save / 2) / config.eval_every if config.eval_every else 0.0
    return m.update + evaluation + (m.save / config.save_every if config.save_every else 0.0)


def plan_key(config: RunConfig) -> str:
    """16 hexadecimal characters for the settings that a plan depends on; seed, rates and target are none of them."""
    return hashlib.sha256(json.dumps(timed_settings(config), sort_keys=True).encode()).hexdigest()[:16]


def timed_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that decide how long an update, an evaluation and a save take, the recipe's options among them."""
    values = {name: value for name, value in config.identity().items() if name not in UNTIMED}
    return {"recipe": config.recipe, **config.options, **values, **{n: getattr(config, n) for n in ALSO_TIMED}}


def _as_updates(seconds: float, update: float) -> str:
    return f" ({seconds / update:.2g} updates)" if seconds else ""


def _machine(config: RunConfig) -> str:
    threads = f"{config.threads} thread{'s' if config.threads != 1 else ''}"
    return f"{platform.machine()}, {config.device}, {threads}"
