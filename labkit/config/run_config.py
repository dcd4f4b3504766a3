"""RunConfig: every setting of a run with its default and its unit, and which of them may change later. Lesson 04."""

from __future__ import annotations

import difflib
import hashlib
import json
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from labkit.config.limits import check
from labkit.config.values import read, typed
from labkit.errors import ConfigError

OptionValue = str | int | float | bool

GOALS = ("updates", "epochs", "examples", "tokens", "seconds")
"""Fields that say where a run ends; the first one reached ends it."""

MAY_CHANGE = frozenset(
    # where the run ends
    {*GOALS}
    # when and how it is saved
    | {"save", "save_every", "save_seconds", "save_epoch_end", "keep", "milestone_every"}
    # who fetches the data, never which data
    | {"workers", "start_method", "persistent_workers", "prefetch"}
    # what to do about an attempt that an exact run would not get past, or about a schedule that has ended
    | {"on_nonfinite", "max_skips", "max_scaler_skips", "after_horizon"}
    # what is watched beside the trajectory
    | {"signals_every", "monitor_every", "profile", "tensorboard", "histograms_every"}
)
"""Fields that may differ between a run and its continuation without changing a bit of the trajectory."""

ENVIRONMENT_FIELDS = frozenset({"device", "threads"})
"""Fields that need a named override at a resume: the run goes on, marked inexact."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides a trajectory, plus where it ends and how it is saved.

    Units are in the comments: an *update* is one move of the optimizer, an *example* one item of the data set,
    a *target* one valid unit of the loss (a letter, a label). None means "not used".
    """

    recipe: str  # "digits", "names" or "path/to/file.py:attribute"
    options: Mapping[str, OptionValue] = field(default_factory=dict)  # the recipe's own settings
    seed: int = 0  # of the initial weights, the data order and every random stream

    # arithmetic
    device: str = "cpu"  # cpu, cuda, cuda:1
    threads: int = 1  # of torch; two threads add in another order than one
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"  # of the forward pass (autocast)
    initial_scale: float = 65536.0  # fp16 loss scale at update 0
    growth_interval: int = 2000  # finite attempts before the scale doubles
    tf32: bool = False  # allow TF32 in matrix products and convolutions on CUDA
    matmul: Literal["highest", "high", "medium"] = "highest"  # torch's float32 matrix product precision
    deterministic: bool = True  # refuse operations that give other bits each time
    cudnn_benchmark: bool = False  # let cuDNN choose kernels by trying them: fast, not exact

    # data order
    batch_size: int = 64  # examples per update
    microbatch_size: tuple[int, ...] = ()  # examples per forward, sizes used in turn; empty: the whole update
    order: Literal["randperm", "feistel"] = "randperm"  # feistel: no memory, any place at once
    workers: int = 0  # processes that fetch; 0: the training process does
    start_method: Literal["spawn", "fork", "forkserver"] = "spawn"  # of the workers
    persistent_workers: bool = True  # keep the workers from epoch to epoch
    prefetch: int = 2  # microbatches fetched ahead by each worker
    shield_global: bool = False  # key the global generators around each transform (slow)

    # optimizer and schedule
    rate: float = 1e-3  # learning rate before the schedule
    weight_decay: float = 0.0  # of AdamW, decoupled from the gradient
    max_norm: float | None = None  # clip the gradient of an update at this 2-norm
    schedule: Literal["constant", "linear", "cosine", "onecycle", "step", "plateau"] = "constant"  # of the rate
    schedule_clock: Literal["updates", "examples", "epochs", "validation"] = "updates"  # what it counts
    warmup: int = 0  # in units of the schedule's clock
    horizon: int | None = None  # in units of the schedule's clock; never derived from the target
    floor: float = 0.0  # factor of the rate at and after the horizon
    schedule_factor: float = 0.1  # step, plateau: multiplies the rate at each drop
    schedule_interval: int = 10  # step: clock units between drops; plateau: evaluations without improvement
    after_horizon: Literal["refuse", "hold"] = "refuse"  # a target beyond the horizon: refuse it, or hold the floor

    # weight average
    ema_decay: float | None = None  # share of the average that stays at each update; none: no average
    ema_warmup: bool = False  # a smaller decay at first: at most (1 + n) / (10 + n)
    ema_buffers: Literal["copy", "average", "recompute"] = "copy"  # BatchNorm statistics of the average

    # guard
    on_nonfinite: Literal["raise", "skip"] = "raise"  # a loss or gradient that is not finite
    max_skips: int = 3  # refused attempts in a row
    max_scaler_skips: int = 20  # attempts in a row that the fp16 scaler skipped

    # evaluation and decisions
    eval_every: int = 0  # updates between evaluations; 0: never
    eval_weights: Literal["raw", "ema"] = "raw"  # evaluate the weights, or their average
    eval_batch_size: int = 256  # examples per forward of an evaluation
    metric: str = "loss"  # the validation metric that decides which weights are best
    mode: Literal["min", "max"] | None = None  # which is better; None: "min" for the loss, no guess else
    patience: int | None = None  # evaluations in a row without improvement before the run ends
    min_improvement: float = 0.0  # of the metric; a smaller gain counts as none
    samples_every: int = 0  # evaluations between stored qualitative outputs; 0: never

    # records
    norm_every: int = 0  # updates between measured update norms; 0: never
    signals_every: int = 10  # attempts between lines of signals.jsonl
    monitor_every: int = 0  # updates between per-layer measurements; 0: never
    profile: bool = False  # measure where the time goes, and show it at the end
    tensorboard: bool = False  # mirror the trajectory (needs the extra of that name)
    histograms_every: int = 0  # updates between histograms in the mirror; 0: never

    # checkpoints
    save_every: int = 0  # updates between checkpoints; 0: only at the start and at the end
    save_seconds: float | None = None  # save at the first boundary after so many seconds
    save_epoch_end: bool = False  # save when an epoch ends
    keep: int = 2  # periodic checkpoints that stay, beside the best and the milestones; at least 2
    milestone_every: int | None = None  # updates between checkpoints that are never removed
    save: Literal["foreground", "background"] = "foreground"  # background: write while training goes on

    # where the run ends: whichever of those given is reached first, and the records name it
    updates: int | None = None  # committed updates
    epochs: int | None = None  # passes over the training split
    examples: int | None = None  # of committed updates
    tokens: int | None = None  # valid targets of committed updates
    seconds: float | None = None  # at work, all processes together, what a kill lost included

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", types.MappingProxyType(dict(self.options)))
        for item in fields(self):
            if item.name != "options":
                object.__setattr__(self, item.name, typed(_HINTS[item.name], item.name, getattr(self, item.name)))
        if self.mode is None and self.metric == "loss":
            object.__setattr__(self, "mode", "min")
        check(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_values, (self.to_dict(),)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, in the order of the fields, ready for JSON."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values["options"] = dict(self.options)
        values["microbatch_size"] = list(self.microbatch_size)
        return values

    def settings(self) -> dict[str, Any]:
        """Plain values by the names that start() and resolve() take: all fields but recipe, and the options."""
        values = self.to_dict()
        return {**values.pop("options"), **{name: value for name, value in values.items() if name != "recipe"}}

    def identity(self) -> dict[str, Any]:
        """The values that a continuation must share: all but MAY_CHANGE and ENVIRONMENT_FIELDS."""
        return {n: v for n, v in self.to_dict().items() if n not in MAY_CHANGE | ENVIRONMENT_FIELDS}

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of identity() as canonical JSON."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()

    def changed(self, **settings: Any) -> RunConfig:
        """A copy with some fields replaced. Raises ConfigError for an unknown name or a value of the wrong kind."""
        known = {item.name for item in fields(self)}
        for name in settings:
            if name not in known:
                raise unknown_name(name, known | set(self.options))
        return replace(self, **settings)


_HINTS = typing.get_type_hints(RunConfig)


def _from_values(values: Mapping[str, Any]) -> RunConfig:
    return RunConfig(**values)


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """The config that to_dict() described. Raises ConfigError for fields that this version does not know."""
    known = {item.name for item in fields(RunConfig)}
    for name in values:
        if name not in known:
            raise ConfigError(
                f"the stored config has a field {name!r}", "fields known to this labkit", "use the labkit that wrote it"
            )
    return RunConfig(**values)


def field_names() -> tuple[str, ...]:
    """All names that `--set` accepts beside a recipe's own options."""
    return tuple(item.name for item in fields(RunConfig) if item.name not in {"recipe", "options"})


CALLED_ELSEWHERE = {
    "lr": "rate", "learning_rate": "rate", "wd": "weight_decay", "steps": "updates", "max_steps": "updates",
    "num_epochs": "epochs", "num_workers": "workers", "max_grad_norm": "max_norm", "clip": "max_norm",
    "amp": "precision", "patience_epochs": "patience", "warmup_steps": "warmup", "ema": "ema_decay",
}  # fmt: skip
"""What other trainers call a setting, too far from its name here to be found by spelling."""


def unknown_name(name: str, known: Iterable[str]) -> ConfigError:
    """The error for a setting that nobody knows, naming the nearest one."""
    known = set(known)
    elsewhere = [CALLED_ELSEWHERE[name]] if CALLED_ELSEWHERE.get(name) in known else []
    near = elsewhere or difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "`labkit train RECIPE --help` lists the names"
    return ConfigError(f"there is no setting called {name!r}", "a field of RunConfig or an option of the recipe", hint)


def parse(name: str, text: str) -> Any:
    """The value that a command line's `name=text` means, by the field's type. Raises ConfigError."""
    return read(_HINTS[name], name, text)
