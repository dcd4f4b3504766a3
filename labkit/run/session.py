"""One process working in one run folder: updates, and at each boundary evaluate, decide, publish, stop. Lesson 04.

At a boundary everything happens in one order: evaluate, decide, publish. Ending a run never adds an evaluation or a
decision that the straight run would not have made, so where it stops leaves no mark on where it goes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from labkit import device, norms, randomness, schedule
from labkit.build import Parts
from labkit.checkpoint import BackgroundSaver, CheckpointStore
from labkit.config import MAY_CHANGE, RunConfig
from labkit.engine import Engine
from labkit.errors import ConfigError, NonfiniteError, StorageError
from labkit.evaluate import carrying_average, evaluate_state, leaving_no_trace, nothing_moved, out_of_patience
from labkit.interrupt import Wishes, listening
from labkit.loading import WorkerError
from labkit.loop import Attempt
from labkit.records.attempts import AttemptLog
from labkit.records.lines import LineLog
from labkit.records.stages import Profile
from labkit.records.tensorboard import Mirror
from labkit.run.folder import RunFolder
from labkit.state import RunState, Saved
from labkit.weighting import Total

Observer = Callable[[Attempt], None]

LOOK_SECONDS = 0.2
"""How often the run folder is looked at for a request."""

SIGNAL_SECONDS = 5.0
"""A line of signals is due after so long, however slow an attempt is: more is not unknown after a kill."""


DEAF = "outside the main thread signals are not handled; request_stop() or a file named stop ends this run"

AT_OPENING = frozenset(
    {"save", "keep", "milestone_every", "workers", "start_method", "persistent_workers", "prefetch", "monitor_every",
     "profile", "tensorboard"}
)  # fmt: skip
"""Fields of MAY_CHANGE that take effect when a session is opened: a resume may change them, a session may not."""


@dataclass(frozen=True)
class Outcome:
    """How a call of train() ended. status: "finished", "early stopped" or "stopped"; reason in words."""

    status: str
    reason: str
    update: int
    updates_done: int  # in this call


class Session:
    """A run that this process holds. Made by start() or resume(); close it, or use it in a `with` block.

    The run's random streams are in place only while a method works: between calls the caller's own are.
    """

    def __init__(
        self, folder: RunFolder, parts: Parts, store: CheckpointStore, attempts: AttemptLog, held: ExitStack,
        facts: dict[str, Any], *, segment: int, seconds_before: float, saved_attempt: int | None,
        notices: Sequence[str] = (),
       ) -> None:  # fmt: skip
        self.folder, self.parts, self.store = folder, parts, store
        self.notices = tuple(notices)
        self.wishes = Wishes()
        self.observers: list[Observer] = []
        self.watch: Observer | None = None  # labkit's own progress line: it draws nothing, so nothing is put back
        self.segment = segment
        self._attempts, self._held, self._facts = attempts, held, facts
        self.engine = Engine(parts)
        self._device = torch.device(parts.config.device)
        self._saved_attempt = saved_attempt  # attempts made when the newest checkpoint was taken
        self._saver = BackgroundSaver(store) if parts.config.save == "background" else None
        self._trajectory, self._signals = LineLog(folder.trajectory), LineLog(folder.signals)
        self._seconds_before, self._worked = seconds_before, 0.0
        self._at_work_since: float | None = None
        self._profile: Profile | None = None
        self._saved_at = time.monotonic()
        self._look_at = 0.0
        self._since = (seconds_before, parts.state.counters.examples, parts.state.counters.tokens)
        self._totals: dict[str, Total] | None = None
        self._tally: dict[str, int] = {}
        self._mirror = self._open_mirror()
        self._ended: tuple[str, BaseException | None] = ("stopped", None)
        self._closed = False

    # --- what one asks of a session ---------------------------------------------------------------------------------

    @property
    def config(self) -> RunConfig:
        return self.engine.config

    @property
    def state(self) -> RunState:
        return self.parts.state

    @property
    def update(self) -> int:
        """Committed updates."""
        return int(self.parts.state.counters.committed)

    @property
    def seconds_used(self) -> float:
        """Seconds that this run has worked, all its processes and what a kill lost together; no pauses."""
        since = self._at_work_since
        return self._seconds_before + self._worked + (0.0 if since is None else time.monotonic() - since)

    @property
    def profile(self) -> Profile | None:
        """Seconds by stage while this session worked; they sum to `wall`. None without the setting profile=true."""
        return self._profile

    @property
    def totals(self) -> dict[str, Total]:
        """Every metric of the last evaluation in this process; empty before the first."""
        return dict(self._totals or {})

    def change(self, **settings: Any) -> None:
        """Change fields that may change in a run, such as updates=200. Raises ConfigError for others."""
        for name in settings:
            if name not in MAY_CHANGE:
                raise ConfigError(f"{name} cannot change within a run", "one of " + ", ".join(sorted(MAY_CHANGE)), "")
            if name in AT_OPENING:
                again = f"close this session, then resume(folder, {name}=...)"
                raise ConfigError(f"{name} is settled when a session is opened", "a field that is read later", again)
        self.engine.config = self.engine.loop.config = self.config.changed(**settings)

    def request_stop(self, reason: str = "asked to stop") -> None:
        """Stop at the next boundary, with a checkpoint; safe from another thread."""
        self.wishes.request_stop(reason)

    def train(self, **settings: Any) -> Outcome:
        """Go on to the target, of the config or given here (updates=, epochs=, ...); ends at a saved boundary.

        Raises NonfiniteError, StorageError at the first save that matters, or what the recipe's code raised; the run
        folder then says in which stage, and the newest checkpoint is as it was.
        """
        if settings:
            self.change(**settings)
        check_target(self.config)
        schedule.check_target(self.config, self.state.schedule)
        before = self.update
        try:
            with self._working(), listening(self.wishes) as heard:
                if not heard and DEAF not in self.notices:
                    self.notices += (DEAF,)
                while (ending := self._boundary()) is None:
                    self._attempt()
        finally:
            self.wishes.stop = None  # obeyed, or overtaken by an error
        status, reason = ending
        self._ended = ("stopped" if status == "stopped" else "finished", None)
        return Outcome(status, reason, self.update, self.update - before)

    def attempt(self) -> Attempt:
        """Evaluate, decide and publish if they are due, then one attempt: for tools that look at each boundary."""
        with self._working():
            self._boundary()
            return self._attempt()

    def sample(self, updates: int) -> None:
        """So many attempts in a row and nothing else, no evaluation and no save: what a plan measures."""
        with self._working():
            for _ in range(updates):
                self._attempt()

    def boundary(self) -> None:
        """What is due at the present boundary (evaluate, decide, publish), without going on."""
        with self._working():
            self._boundary()

    def ending(self) -> tuple[str, str] | None:
        """(status, reason) if the run ends at the present boundary, else None."""
        return self._ending()

    def capture(self) -> Saved:
        """A copy of the whole state as saved, with the run's own random streams."""
        return self.engine.capture()

    def publish(self, reason: str = "asked") -> None:
        """Save at the present boundary."""
        with self._working():
            self._publish(reason)

    def dry_run(self) -> Attempt:
        """One update and one validation batch; the checkpoint is marked, and no resume will take it."""
        with self._working():
            record = self._attempt()
            if self.parts.splits.validation is not None:
                self.engine.stages.enter("evaluation")
                first = torch.utils.data.Subset(
                    self.parts.splits.validation,
                    range(min(self.config.eval_batch_size, len(self.parts.splits.validation))),
                )
                evaluate_state(self.state, self.parts.recipe, self.config, self.parts.splits.train, first)
            self._publish("dry run", dry_run=True)
        self._ended = ("finished", None)
        return record

    def close(self) -> None:
        """End this attempt in the records, stop workers, give the folder free. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        status, error = self._ended
        with self._held, ExitStack() as stack:
            stack.callback(self.engine.close)
            stack.callback(self._record_end, status, error)
            stack.callback(self._signals.close)
            stack.callback(self._trajectory.close)
            if self._mirror is not None:
                stack.callback(self._mirror.close)
            if self._saver is not None:
                stack.callback(self._saver.close)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self._failed(error)
        self.close()

    # --- boundaries -------------------------------------------------------------------------------------------------

    def _boundary(self) -> tuple[str, str] | None:
        """Everything that is due here; (status, reason) when the run ends at this boundary."""
        self._read_requests()
        self._evaluate_if_due()
        ending = self._ending()
        reason = self._save_reason(ending)
        if reason is not None:
            self._publish(reason)
        self._finish_background(wait=ending is not None)
        return ending

    def _evaluate_if_due(self) -> None:
        found = self.engine.evaluate_if_due(lambda: self.wishes.stop is not None)
        if found is None:
            return
        self._totals = found.totals
        self._record({
            "attempt": found.attempt, "update": found.update, "segment": self.segment,
            "validation": {name: [total.sum, total.count] for name, total in found.totals.items()},
            "best": found.best, "without_improvement": found.without_improvement, "rates_next": list(found.rates_next),
        })  # fmt: skip
        if found.best:
            self.wishes.request_save()
        self._store_samples()

    def _store_samples(self) -> None:
        """Qualitative outputs, drawn in eval mode from generators of their own."""
        config, counters = self.config, self.state.counters
        if not config.samples_every or counters.evaluations % config.samples_every:
            return
        with (
            carrying_average(self.state, self.parts.recipe, config, self.parts.splits.train),
            leaving_no_trace(self.state.model),
            nothing_moved(self.state),
            torch.no_grad(),
            LineLog(self.folder.samples) as log,
        ):
            for sample in self.parts.recipe.samples(self.state.model, config):
                log.append({"attempt": counters.attempted, "update": counters.committed, **sample})

    def _ending(self) -> tuple[str, str] | None:
        counters, config = self.state.counters, self.config
        if out_of_patience(self.state.best, config):
            return "early stopped", f"{self.state.best.without_improvement} evaluations without improvement"
        for name, reached in (
            ("updates", counters.committed), ("epochs", self.state.cursor.epoch), ("examples", counters.examples),
            ("tokens", counters.tokens), ("seconds", self.seconds_used),
        ):  # fmt: skip
            goal = getattr(config, name)
            if goal is not None and reached >= goal:
                return "finished", f"target reached: {name}={goal:g}"
        if self.wishes.stop is not None:
            return "stopped", self.wishes.stop
        return None

    def _save_reason(self, ending: tuple[str, str] | None) -> str | None:
        counters, config = self.state.counters, self.config
        if counters.attempted == self._saved_attempt and not self.wishes.save:
            return None
        if self.wishes.save:
            self.wishes.save = False
            is_best = self.state.best.update == counters.committed and self._totals is not None
            return "best" if is_best else "asked"
        if ending is not None:
            return "signal" if ending[1].startswith("SIG") else ending[0]
        moved = counters.committed > 0
        if config.save_every and moved and counters.committed % config.save_every == 0:
            return "periodic"
        if config.save_epoch_end and self.state.cursor.examples == 0:
            return "epoch end"
        if config.save_seconds is not None and time.monotonic() - self._saved_at >= config.save_seconds:
            return "time"
        return None

    def _read_requests(self) -> None:
        """Files named save and stop in the run folder; looked for a few times a second, not at each boundary."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        if self.folder.save_request.exists():
            self.folder.save_request.unlink(missing_ok=True)
            self.wishes.request_save()
        if self.folder.stop_request.exists():
            self.folder.stop_request.unlink(missing_ok=True)
            self.wishes.request_stop("stop file")

    def _finish_background(self, wait: bool) -> None:
        """Clear old checkpoints after a background save; a failed one is recorded, and raised only at the end."""
        if self._saver is None:
            return
        try:
            done = self._saver.wait() if wait else self._saver.check()
        except StorageError as error:
            self._save_failed(error)
            if wait:
                raise
            return
        if done is not None:
            self.store.retain(self.state.best.update)

    # --- publishing ---------------------------------------------------------------------------------------------------

    def _publish(self, reason: str, *, dry_run: bool = False) -> None:
        """Records to disk first, then the state: a checkpoint never knows more than the records."""
        self.engine.loop.refuse_if_torn()
        self.engine.stages.enter("publish")
        bad = norms.first_nonfinite(self.state.model.named_parameters())
        if bad is not None:
            raise NonfiniteError(
                f"after update {self.update} the parameter {bad} is not finite", "finite parameters in a checkpoint",
                "resume: the newest checkpoint is from before; lower the rate in a new run",
            )  # fmt: skip
        self._trajectory.flush(durable=True)
        self._signals.flush(durable=True)
        if self._mirror is not None:
            self._mirror.flush()
        state = self.state
        facts = {
            **self._facts, "reason": reason, "dry_run": dry_run, "config": self.config.to_dict(),
            "counters": asdict(state.counters), "segment": self.segment, "seconds_used": self.seconds_used,
            "evaluation": {n: [t.sum, t.count] for n, t in (self._totals or {}).items()}, "best": asdict(state.best),
        }  # fmt: skip
        try:
            if self._saver is not None and not dry_run:
                self._saver.submit(state.counters.committed, state.capture(), facts)
            else:
                self.store.publish(state.counters.committed, state.capture(), facts)
                self.store.retain(state.best.update)
        except StorageError as error:
            self._save_failed(error)
            if reason in {"start", "dry run", "asked", "signal", "stopped", "finished", "early stopped"}:
                raise
            return
        self._saved_attempt, self._saved_at = state.counters.attempted, time.monotonic()

    def _save_failed(self, error: StorageError) -> None:
        self._attempts.remark("save failed", update=self.update, why=type(error).__name__)
        self.notices += (f"update {self.update}: the save failed, the checkpoint before it stays. {error}",)
        self._saved_attempt, self._saved_at = None, time.monotonic()

    # --- one attempt --------------------------------------------------------------------------------------------------

    def _attempt(self) -> Attempt:
        try:
            record = self.engine.update()
        except WorkerError:
            if self.engine.loop.torn is None and self.state.counters.attempted != self._saved_attempt:
                self._publish("worker died")  # it died over a fetch: the boundary before it stands
            raise
        line = {name: getattr(record, name) for name in _ATTEMPT_FIELDS}
        line["segment"] = self.segment
        if record.tally is not None:
            line["tally"] = record.tally
            for name, count in record.tally.items():
                self._tally[name] = self._tally.get(name, 0) + count
        self._record(line)
        if record.layers is not None:
            with LineLog(self.folder.monitors) as log:
                log.append(record.layers)
        every = self.config.signals_every
        if every and (record.attempt % every == 0 or self.seconds_used - self._since[0] >= SIGNAL_SECONDS):
            self._signal(record)
        if record.skipped is not None and record.skipped not in {"no valid targets", "scaler backed off"}:
            self._incident(record.attempt, record.skipped)
        if self.watch is not None:
            self.watch(record)
        if self.observers:
            with randomness.preserved(self.state.generators, self.state.devices):  # whatever they draw or seed
                for observer in self.observers:
                    observer(record)
        return record

    def _record(self, line: dict[str, Any]) -> None:
        self._trajectory.append(line)
        if self._mirror is not None:
            self._mirror.write(line)
            every = self.config.histograms_every
            if every and line.get("skipped") is None and "indices" in line and line["update"] % every == 0:
                self._mirror.histograms(self.state.model, line["update"])

    def _open_mirror(self) -> Mirror | None:
        if not self.config.tensorboard:
            return None
        return Mirror(self.folder.tensorboard, self.update if self.segment else None)

    def _signal(self, record: Attempt) -> None:
        """What belongs to the clock and the machine, since the last line."""
        now, (then, examples, tokens) = self.seconds_used, self._since
        passed = max(now - then, 1e-9)
        line: dict[str, Any] = {
            "attempt": record.attempt, "update": record.update, "segment": self.segment, "seconds": now,
            "examples_per_second": (record.examples - examples) / passed,
            "tokens_per_second": (record.tokens - tokens) / passed,
            "peak_memory_bytes": device.peak_memory_bytes(self._device),
        }  # fmt: skip
        if self.config.profile:
            line["stage_seconds"] = self._take_profile().seconds
        if self._tally:
            line["tally"], self._tally = self._tally, {}
        self._signals.append(line)
        self._since = (now, record.examples, record.tokens)

    def _incident(self, attempt: int, why: str) -> None:
        """Where to look later: the attempt, and the newest checkpoint before it. Exactness lets `replay` run there."""
        with LineLog(self.folder.incidents) as log:
            log.append({
                "attempt": attempt, "update": self.update, "segment": self.segment, "epoch": self.state.cursor.epoch,
                "why": why, "checkpoint_attempt": self._saved_attempt,
            })  # fmt: skip

    # --- streams and failures -----------------------------------------------------------------------------------------

    @contextmanager
    def _working(self) -> Iterator[None]:
        """The run's random streams and clock inside, the caller's outside; a failure is recorded with its stage."""
        if self._at_work_since is not None:
            yield
            return
        with self.engine.working():
            self.engine.stages.take()  # what passed since the session last worked belongs to nobody
            self._at_work_since = time.monotonic()
            try:
                yield
            except BaseException as error:
                self._failed(error)
                raise
            finally:
                self._worked += time.monotonic() - self._at_work_since
                self._at_work_since = None
                if self.config.profile:
                    self._take_profile()

    def _take_profile(self) -> Profile:
        """The stage times since the last call, also added to those of the whole session."""
        taken, total = self.engine.stages.take(), self._profile or Profile({}, 0.0, 0.0)
        seconds = dict(total.seconds)
        for name, spent in taken.seconds.items():
            seconds[name] = seconds.get(name, 0.0) + spent
        self._profile = Profile(seconds, total.wall + taken.wall, total.overhead + taken.overhead)
        return taken

    def _failed(self, error: BaseException) -> None:
        if self._ended[1] is error:
            return
        self._ended = ("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", error)
        if isinstance(error, NonfiniteError) and self.engine.loop.torn is not None:
            self._incident(self.state.counters.attempted + 1, error.found)

    def _record_end(self, status: str, error: BaseException | None) -> None:
        counters = self.state.counters
        metric = None
        if self._totals and self.config.metric in self._totals:
            total = self._totals[self.config.metric]
            metric = {"name": self.config.metric, "sum": total.sum, "count": total.count}
        self._attempts.end(
            status, error=error, stage=self.engine.stages.failed(error) if error is not None else None, metric=metric,
            selected={"update": self.state.best.update} if self.state.best.update is not None else None,
            measured={
                "seconds": self.seconds_used - self._seconds_before, "seconds_used": self.seconds_used,
                "updates": counters.committed, "examples": counters.examples, "tokens": counters.tokens,
                "skipped": counters.skipped, "scaler_skipped": counters.scaler_skipped,
                "peak_memory_bytes": device.peak_memory_bytes(self._device),
                **({"stage_seconds": self._profile.seconds} if self._profile is not None else {}),
            },
        )  # fmt: skip


_ATTEMPT_FIELDS = tuple(name for name in Attempt.__dataclass_fields__ if name not in {"tally", "layers"})


def check_target(config: RunConfig) -> None:
    """Raise ConfigError when nothing says where the run ends."""
    goals = ("updates", "epochs", "examples", "tokens", "seconds")
    if all(getattr(config, name) is None for name in goals):
        raise ConfigError("nothing says where the run ends", "one of " + ", ".join(goals), "for example updates=200")


__all__ = ["Observer", "Outcome", "Session", "check_target"]
