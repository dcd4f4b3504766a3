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

from labkit import norms, randomness, schedule
from labkit.build import Parts
from labkit.checkpoint import CheckpointStore
from labkit.config import MAY_CHANGE, RunConfig
from labkit.device import peak_memory_bytes
from labkit.engine import Engine
from labkit.errors import ConfigError, NonfiniteError, StorageError, TornStateError
from labkit.evaluate import carrying_average, evaluate_state, leaving_no_trace, nothing_moved
from labkit.interrupt import Wishes, listening
from labkit.loading import WorkerError
from labkit.loop import Attempt
from labkit.records.attempts import AttemptLog
from labkit.records.stages import Profile
from labkit.run.folder import RunFolder
from labkit.run.goals import Ending, check_target, find_ending
from labkit.run.journal import Journal
from labkit.run.publishing import Publisher
from labkit.state import RunState, Saved
from labkit.weighting import Total

Observer = Callable[[Attempt], None]

LOOK_SECONDS = 0.2
"""How often the run folder is looked at for a request."""

NO_SIGNALS = "outside the main thread signals are not handled; request_stop() or a file named stop ends this run"

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
        self.folder, self.store = folder, store
        self.notices = tuple(notices)
        self.wishes = Wishes()
        self.observers: list[Observer] = []
        self.watch: Observer | None = None  # labkit's own progress line: it draws nothing, so nothing is put back
        self.segment = segment
        self._attempts, self._held, self._facts = attempts, held, facts
        self.engine = Engine(parts)
        self._publisher = Publisher(
            store, parts.config.save == "background", saved_attempt,
            None if saved_attempt is None else parts.state.counters.committed, folder.pinned(), self._save_failed,
        )  # fmt: skip
        self._journal = Journal(folder, parts.config, parts.state, segment, seconds_before)
        self._seconds_before, self._worked = seconds_before, 0.0
        self._at_work_since: float | None = None
        self._profile: Profile | None = None
        self._look_at = 0.0
        self._totals: dict[str, Total] | None = None
        self._ended: tuple[str, BaseException | None] = ("stopped", None)
        self._closed = False

    # --- what one asks of a session ---------------------------------------------------------------------------------

    @property
    def config(self) -> RunConfig:
        return self.engine.config

    @property
    def parts(self) -> Parts:
        return self.engine.parts

    @property
    def state(self) -> RunState:
        return self.engine.state

    @property
    def update(self) -> int:
        """Committed updates."""
        return self.state.counters.committed

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
        self.engine.change(self.config.changed(**settings))
        if self.folder.exists():  # so that a resume after a kill goes to the same target
            self.folder.write_config(self._facts["run_id"], self.config)

    def remark(self, what: str, **facts: Any) -> None:
        """Something worth keeping with this attempt at running."""
        self._attempts.remark(what, **facts)

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
                if not heard and NO_SIGNALS not in self.notices:
                    self.notices += (NO_SIGNALS,)
                while (ending := self._boundary()) is None:
                    self._attempt()
        finally:
            self.wishes.forget_stop()
        self._ended = ("stopped" if ending.status == "stopped" else "finished", None)
        return Outcome(ending.status, ending.reason, self.update, self.update - before)

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

    def ending(self) -> Ending | None:
        """How the run ends at the present boundary; None when it goes on."""
        if self.wishes.stop is not None and self.engine.evaluation_due():
            return Ending("stopped", self.wishes.stop)  # not finished: the evaluation of the target is owed
        return find_ending(self.state, self.config, self.seconds_used, self.wishes.stop)

    def capture(self) -> Saved:
        """A copy of the whole state as saved, with the run's own random streams."""
        return self.engine.capture()

    def publish(self, reason: str = "asked") -> None:
        """Save at the present boundary. Raises StorageError when the disk refuses."""
        with self._working():
            self._publish(reason, required=True)

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
            self._publish("dry run", required=True, dry_run=True)
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
            stack.callback(self._journal.close)
            stack.callback(self._publisher.close)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self.failed(error)
        self.close()

    # --- boundaries -------------------------------------------------------------------------------------------------

    def _boundary(self) -> Ending | None:
        """Everything that is due here; how the run ends, if it ends at this boundary."""
        self._read_requests()
        self._evaluate_if_due()
        ending = self.ending()
        reason = self._publisher.reason(self.state, self.config, self.wishes, ending)
        if reason is not None:
            self._publish(reason, required=ending is not None or reason == "asked")
        last = ending is not None
        self._publisher.finish(self.state.best.update, wait=last, required=last)
        return ending

    def _evaluate_if_due(self) -> None:
        found = self.engine.evaluate_if_due(lambda: self.wishes.stop is not None)
        if found is None:
            return
        self._totals = found.totals
        if found.attempt == self._publisher.saved_attempt:  # what was saved here before knows nothing of it
            self._publisher.saved_attempt = None
        self._journal.evaluation(found)
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
        ):
            self._journal.samples(self.parts.recipe.samples(self.state.model, config))

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

    def _publish(self, reason: str, *, required: bool, dry_run: bool = False) -> None:
        """Records to disk first, then the state: a checkpoint never knows more than the records."""
        self.engine.loop.refuse_if_torn()
        self.engine.stages.enter("publish")
        bad = norms.first_nonfinite(self.state.model.named_parameters())
        if bad is not None:
            raise NonfiniteError(
                f"after update {self.update} the parameter {bad} is not finite", "finite parameters in a checkpoint",
                "resume: the newest checkpoint is from before; lower the rate in a new run",
            )  # fmt: skip
        self._journal.flush()
        facts = {
            **self._facts, "reason": reason, "dry_run": dry_run, "config": self.config.to_dict(),
            "counters": asdict(self.state.counters), "segment": self.segment, "seconds_used": self.seconds_used,
            "evaluation": {n: [t.sum, t.count] for n, t in self.totals.items()}, "best": asdict(self.state.best),
        }  # fmt: skip
        self._publisher.publish(self.state, facts, required=required, wait=dry_run)

    def _save_failed(self, error: StorageError) -> None:
        self.remark("save failed", update=self.update, why=type(error).__name__)
        self.notices += (f"update {self.update}: the save failed, the checkpoint before it stays. {error}",)

    # --- one attempt --------------------------------------------------------------------------------------------------

    def _attempt(self) -> Attempt:
        try:
            record = self.engine.update()
        except WorkerError:
            if self.engine.loop.torn is None and self.state.counters.attempted != self._publisher.saved_attempt:
                self._publish("worker died", required=False)  # it died over a fetch: the boundary before it stands
            raise
        self._journal.attempt(record, self.config)
        if record.refused:
            self._journal.incident(record.attempt, record.skipped or "", self._publisher.pin(), record.indices)
        if self._journal.signal_due(record, self.config, self.seconds_used):
            stage_seconds = self._take_profile().seconds if self.config.profile else {}
            self._journal.signal(record, self.config, self.seconds_used, stage_seconds)
        if self.watch is not None:
            self.watch(record)
        if self.observers:
            with randomness.preserved(self.state.generators, self.state.devices):  # whatever they draw or seed
                for observer in self.observers:
                    observer(record)
        return record

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
                self.failed(error)
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

    def failed(self, error: BaseException) -> None:
        """Remember what ended this attempt at running; close() writes it down."""
        if self._ended[1] is error or (self._ended[1] is not None and isinstance(error, TornStateError)):
            return  # that the objects are torn hides nothing of what tore them
        self._ended = ("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", error)
        if isinstance(error, NonfiniteError) and self.engine.loop.torn is not None:
            self._journal.incident(self.state.counters.attempted + 1, error.found, self._publisher.pin())

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
                "peak_memory_bytes": peak_memory_bytes(torch.device(self.config.device)),
                **({"stage_seconds": self._profile.seconds} if self._profile is not None else {}),
            },
        )  # fmt: skip
