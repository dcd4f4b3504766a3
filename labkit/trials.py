"""Is one setting better than another? Runs over seeds at equal budget, compared in pairs, with an interval. Lesson 08.

Both runs of a seed share initial weights and data order, so their difference is far less noisy than either of them.
The verdict is "better", "worse" or "cannot tell": one pair, or an interval that holds zero, decides nothing.
"""

from __future__ import annotations

import html
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit.config import RunConfig
from labkit.errors import ConfigError, ProofError
from labkit.recipe import resolve
from labkit.recipes import find
from labkit.records.lines import read_lines
from labkit.run import check_target
from labkit.run.folder import RunFolder

T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Two-sided 95% points of Student's t for 1 to 30 degrees of freedom (any statistics table)."""


def t_95(degrees: int) -> float:
    """The factor from a standard error to a 95% interval; above 30 degrees nearly that of the normal law, 1.96."""
    if degrees < 1:
        return math.inf
    return T_95[degrees - 1] if degrees <= len(T_95) else 1.960 + 2.4 / degrees


@dataclass(frozen=True)
class Verdict:
    """A paired comparison: mean difference (second minus first), half width of its 95% interval, and what it means."""

    verdict: str  # of the second against the first: better, worse, cannot tell
    mean: float
    half_width: float
    pairs: int
    wins: int  # pairs in which the second was better

    def __str__(self) -> str:
        width = "no interval" if math.isinf(self.half_width) else f"+/- {self.half_width:.4g}"
        return f"{self.verdict} ({self.mean:+.4g} {width} over {self.pairs} pairs, better in {self.wins})"


def paired(first: Sequence[float], second: Sequence[float], mode: str = "min") -> Verdict:
    """Compare two methods over the same seeds, in order. mode: "min" if lower is better, "max" if higher is.

    A pair with a value that is not finite makes every verdict but "cannot tell" impossible.
    Raises ConfigError for lists of different lengths, none at all, or another mode.
    """
    if len(first) != len(second) or not first:
        raise ConfigError(f"{len(first)} values against {len(second)}", "one pair for each seed", "give both lists")
    if mode not in {"min", "max"}:
        raise ConfigError(f"mode={mode!r}", "min or max", "say which way is better; it is not guessed from a name")
    gains = [(a - b if mode == "min" else b - a) for a, b in zip(first, second, strict=True)]
    wins, n = sum(gain > 0 for gain in gains), len(gains)
    mean = math.fsum(b - a for a, b in zip(first, second, strict=True)) / n
    if n < 2 or not all(map(math.isfinite, gains)):
        return Verdict("cannot tell", mean, math.inf, n, wins)
    half = t_95(n - 1) * statistics.stdev(gains) / math.sqrt(n)
    gain = math.fsum(gains) / n
    verdict = "cannot tell" if abs(gain) <= half or gain == 0 else "better" if gain > 0 else "worse"
    return Verdict(verdict, mean, half, n, wins)


@dataclass(frozen=True)
class Trial:
    """One run of the table: a value of the varied setting, a seed, and its final metric as sum and count."""

    value: str
    seed: int
    run: str
    sum: float
    count: int
    update: int

    @property
    def metric(self) -> float:
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
        return list(dict.fromkeys(trial.value for trial in self.trials))

    def of(self, value: str) -> list[float]:
        """Metrics by seed, in order."""
        return [t.metric for t in sorted(self.trials, key=lambda t: t.seed) if t.value == value]

    def verdicts(self) -> dict[str, Verdict]:
        first, *others = self.values()
        return {value: paired(self.of(first), self.of(value), self.mode) for value in others}

    def __str__(self) -> str:
        first = self.values()[0]
        lines = [f"{self.recipe}, {self.metric} on validation ({self.mode}), equal budget {self.budget}"]
        for value in self.values():
            numbers = self.of(value)
            spread = f", standard deviation {statistics.stdev(numbers):.4g}" if len(numbers) > 1 else ""
            mean = f"mean {statistics.fmean(numbers):.4g} over {len(numbers)} seeds"
            lines.append(f"  {self.setting}={value}: {mean}{spread}")
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

    vary: one setting and its values, the first is the baseline. settings hold the budget (updates=...), the same for
    all. Runs lie in folder/<value>/seed-<n>; finished ones are not run again, interrupted ones are continued.
    Raises ConfigError for more than one varied setting, fewer than two values, or a budget that is missing.
    """
    (name, values), numbers, config = _checked(recipe, vary, seeds, settings)
    budget = ", ".join(f"{n}={getattr(config, n)}" for n in _BUDGETS if getattr(config, n) is not None)
    jobs_todo = [(str(value), seed) for value in values for seed in numbers]
    place = Path(folder)

    def one(job: tuple[str, int]) -> Trial:
        value, seed = job
        run = place / f"{name}-{value}" / f"seed-{seed}"
        _finish(recipe, run, {**settings, name: value, "seed": seed, "eval_every": _every(config)})
        return _result(run, value, seed, config)

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        found = []
        for trial in pool.map(one, jobs_todo):
            found.append(trial)
            progress(f"{len(found)} of {len(jobs_todo)} runs")
    return Trials(recipe, name, config.metric, config.mode, budget, tuple(found))


_BUDGETS = ("updates", "epochs", "examples", "tokens")


def _checked(
    recipe: str, vary: Mapping[str, Sequence[Any]], seeds: int | Sequence[int], settings: Mapping[str, Any]
) -> tuple[tuple[str, Sequence[Any]], list[int], RunConfig]:
    if len(vary) != 1:
        raise ConfigError(f"{len(vary)} settings are varied", "one", "vary one thing at a time")
    ((name, values),) = vary.items()
    if len(values) < 2 or len({str(value) for value in values}) < len(values):
        raise ConfigError(f"{name} takes {list(values)}", "two or more different values", "name a baseline too")
    if name in _BUDGETS or name in {"seed", *settings}:
        raise ConfigError(f"{name} is varied", "a setting other than seed and budget, given once", "choose another")
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not numbers or len(set(numbers)) < len(numbers):
        raise ConfigError(f"seeds {numbers}", "one or more different ones", "for example seeds=5")
    configs = [resolve(find(recipe), recipe, {**settings, name: value}) for value in values]
    check_target(configs[0])
    return (name, values), numbers, configs[0]


def _every(config: RunConfig) -> int:
    """Evaluate at the end at least; the user's own interval wins."""
    return config.eval_every or config.updates or 1


def _finish(recipe: str, run: Path, settings: Mapping[str, Any]) -> None:
    """A fresh process that starts or continues the run; nothing to do when its target is reached."""
    command = [sys.executable, "-m", "labkit"]
    if RunFolder(run).exists():
        command += ["resume", str(run), "--json"]
    else:
        run.parent.mkdir(parents=True, exist_ok=True)
        words = [f"{name}={_word(value)}" for name, value in settings.items()]
        command += ["train", recipe, "--run", str(run), "--json", "--set", *words]
    path = [str(Path(__file__).resolve().parents[1]), *filter(None, sys.path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env, start_new_session=os.name == "posix"
    )  # fmt: skip
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no words"])[-1]
        raise ProofError(f"the run in {run.name} ended with status {done.returncode}: {last}", "a finished run", "")
    json.loads(done.stdout)


def _word(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _result(run: Path, value: str, seed: int, config: RunConfig) -> Trial:
    """The last evaluation of a run. Raises ProofError when it never evaluated."""
    lines = [line for line in read_lines(run / "trajectory.jsonl").records if "validation" in line]
    if not lines:
        raise ProofError(f"{run.name} recorded no evaluation", "at least one", "set eval_every within the budget")
    total, count = lines[-1]["validation"][config.metric]
    return Trial(value, seed, str(run), float(total), int(count), int(lines[-1]["update"]))
