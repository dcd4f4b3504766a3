"""All runs of one comparison: made in fresh processes, kept, continued after an interruption, compared. Lesson 08."""

from __future__ import annotations

import html
import json
import math
import re
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit import processes
from labkit.config import GOALS, RunConfig
from labkit.errors import ConfigError, ProofError
from labkit.recipe import resolve
from labkit.recipes import find
from labkit.run import check_target
from labkit.run.folder import RunFolder
from labkit.trials.child import RESULT, STOPPED, Job, key
from labkit.trials.verdict import Verdict, paired


@dataclass(frozen=True)
class Trial:
    """One run of the table: a value of the varied setting, a seed, and its final metric as sum and count."""

    value: str
    seed: int
    run: str
    sum: float
    count: int
    update: int
    seconds: float = 0.0

    @property
    def metric(self) -> float:
        """The mean; nan when nothing was counted."""
        return self.sum / self.count if self.count else math.nan


@dataclass(frozen=True)
class Trials:
    """All runs of one comparison, and the verdict of every value against the first."""

    recipe: str
    setting: str
    metric: str
    mode: str
    budget: str
    trials: tuple[Trial, ...]

    def values(self) -> list[str]:
        """The values of the varied setting in the order given; the first is the baseline."""
        return list(dict.fromkeys(trial.value for trial in self.trials))

    def of(self, value: str) -> list[float]:
        """Metrics of one value, by seed in order."""
        return [t.metric for t in sorted(self.trials, key=lambda t: t.seed) if t.value == value]

    def verdicts(self) -> dict[str, Verdict]:
        """Every value but the first against the first, over the same seeds."""
        first, *others = self.values()
        return {value: paired(self.of(first), self.of(value), self.mode) for value in others}

    def __str__(self) -> str:
        first = self.values()[0]
        lower = "lower is better" if self.mode == "min" else "higher is better"
        lines = [f"{self.recipe}, {self.metric} on validation ({lower}), equal budget {self.budget}"]
        for value in self.values():
            numbers = self.of(value)
            spread = f", standard deviation {statistics.stdev(numbers):.4g}" if len(numbers) > 1 else ""
            seeds = f"{len(numbers)} seed{'s' if len(numbers) != 1 else ''}"
            lines.append(f"  {self.setting}={value}: mean {statistics.fmean(numbers):.4g} over {seeds}{spread}")
        for value, verdict in self.verdicts().items():
            lines.append(f"{self.setting}={value} against {self.setting}={first}: {verdict}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "verdicts": {value: asdict(verdict) for value, verdict in self.verdicts().items()}}

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def trials(
    recipe: str, *, vary: Mapping[str, Sequence[Any]], seeds: int | Sequence[int], folder: Path | str, jobs: int = 2,
    progress: Callable[[str], None] = lambda text: None, **settings: Any,
) -> Trials:  # fmt: skip
    """Run a recipe for every seed and every value of one setting, each in a fresh process, and compare in pairs.

    vary: one setting and its values, the first is the baseline. settings hold the budget (updates=..., tokens=..., or
    another goal), the same for all; the weights at its end are compared. Runs lie in folder/<name>-<value>/seed-<n>:
    those that are done are not run again, interrupted ones are continued, also when the budget is raised.
    Raises ConfigError for more than one varied setting, fewer than two values or a missing budget, IdentityError when
    runs with other settings lie there, ProofError when a run fails.
    """
    name, values, numbers, configs = _checked(recipe, vary, seeds, settings)
    place = Path(folder)
    todo: list[tuple[str, int, Path, RunConfig]] = []
    for value, config in zip(values, configs, strict=True):
        for seed in numbers:
            run = place / f"{name}-{_file_name(value)}" / f"seed-{seed}"
            todo.append((str(value), seed, run, config.changed(seed=seed)))
    found = [(value, seed, run, config, _stored(run, config)) for value, seed, run, config in todo]
    missing = [(run, config) for *_, run, config, result in found if result is None]
    _run_all(recipe, missing, len(todo), jobs, progress)
    config = configs[0]
    budget = ", ".join(f"{goal}={getattr(config, goal):g}" for goal in GOALS if getattr(config, goal) is not None)
    return Trials(
        recipe, name, config.metric, config.mode or "min", budget, tuple(_trial(*entry) for entry in found)
    )  # fmt: skip


def _checked(
    recipe: str, vary: Mapping[str, Sequence[Any]], seeds: int | Sequence[int], settings: Mapping[str, Any]
) -> tuple[str, Sequence[Any], list[int], list[RunConfig]]:
    if len(vary) != 1:
        raise ConfigError(f"{len(vary)} settings are varied", "one", "vary one thing at a time")
    ((name, values),) = vary.items()
    if len(values) < 2 or len({_file_name(value) for value in values}) < len(values):
        raise ConfigError(f"{name} takes {list(values)}", "two or more different values", "name a baseline too")
    if name in {"seed", *GOALS, *settings}:
        raise ConfigError(f"{name} is varied", "a setting other than seed and budget, given once", "choose another")
    if "seed" in settings:
        raise ConfigError("seed is set", "the seeds of the trials alone", "say how many with seeds=")
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not numbers or len(set(numbers)) < len(numbers):
        raise ConfigError(f"seeds {numbers}", "one or more different ones", "for example seeds=5")
    configs = [resolve(find(recipe), recipe, {**settings, name: value}) for value in values]
    for config in configs:
        check_target(config)
        if config.mode is None:
            raise ConfigError(f"metric={config.metric} without a direction", "mode=min or mode=max", "set mode")
    return name, values, numbers, configs


def _file_name(value: Any) -> str:
    """A value as part of a folder's name: a list by its items, what no file system likes replaced."""
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return re.sub(r"[^\w.,+=-]", "_", text) or "empty"


def _stored(run: Path, config: RunConfig) -> dict[str, Any] | None:
    """The result that lies in a run folder, if it is of these settings and this budget."""
    try:
        result = json.loads((run / RESULT).read_text(encoding="utf-8"))
        return dict(result) if result["key"] == key(config) and result["metric"] == config.metric else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _trial(value: str, seed: int, run: Path, config: RunConfig, stored: dict[str, Any] | None) -> Trial:
    result = stored or _stored(run, config)
    if result is None:
        raise ProofError(
            f"the run in {run} is of other settings than those asked for", "the same settings",
            "choose another folder for this comparison",
        )  # fmt: skip
    return Trial(
        value, seed, str(run), float(result["sum"]), int(result["count"]), int(result["update"]),
        float(result["seconds"]),
    )  # fmt: skip


# --- processes --------------------------------------------------------------------------------------------------------


def _run_all(
    recipe: str, missing: list[tuple[Path, RunConfig]], total: int, jobs: int, progress: Callable[[str], None]
) -> None:
    """Fresh processes, `jobs` side by side. Interrupted, or when one fails: the others stop at a boundary, saved."""
    for run, config in missing:
        _refuse_other(run, config)
    working: set[subprocess.Popen[str]] = set()
    ended = [False]

    def one(run: Path, config: RunConfig) -> None:
        if ended[0]:
            return
        process = _begin(recipe, run, config)
        working.add(process)
        try:
            _, errors = process.communicate()
        finally:
            working.discard(process)
        if process.returncode != 0 and not ended[0]:
            raise _failure(run, process.returncode, errors)

    done = total - len(missing)
    progress(f"{done} of {total} runs")
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        futures: list[Future[None]] = [pool.submit(one, run, config) for run, config in missing]
        try:
            for future in as_completed(futures):
                future.result()
                done += 1
                progress(f"{done} of {total} runs")
        except BaseException:
            ended[0] = True
            for process in list(working):
                process.terminate()  # SIGTERM: it stops at its next boundary with a checkpoint
            raise


def _refuse_other(run: Path, config: RunConfig) -> None:
    """Raise ProofError when what lies there cannot become this run: other settings, or a budget it has outrun."""
    folder = RunFolder(run)
    if not folder.exists():
        return
    there = folder.read_config()
    if there.fingerprint != config.fingerprint:
        raise ProofError(f"{run} holds a run with other settings", "a run of this comparison", "choose another folder")
    for goal in GOALS:
        before, now = getattr(there, goal), getattr(config, goal)
        if before != now and (before is None or now is None or before > now):
            raise ProofError(
                f"the run in {run} was given {goal}={before}, now {goal}={now}", "the same budget, or a larger one",
                "choose another folder",
            )  # fmt: skip


def _begin(recipe: str, run: Path, config: RunConfig) -> subprocess.Popen[str]:
    run.parent.mkdir(parents=True, exist_ok=True)
    values = config.to_dict()
    settings = {**values.pop("options"), **{n: v for n, v in values.items() if n != "recipe"}}
    return processes.begin("-m", "labkit.trials.child", Job(recipe, str(run), settings).text())


def _failure(run: Path, status: int, errors: str) -> ProofError:
    if status == STOPPED:
        return ProofError(f"the run in {run} was stopped before its budget was spent", "a finished run", "ask again")
    last = processes.last_words(errors, status)
    return ProofError(f"the run in {run} ended with status {status}: {last}", "a finished run", "")
