"""Processes that fetch batches ahead, deaf to the signals that stop a run. Lessons 02 and 11.

A worker is told (epoch, indices) with each request and remembers nothing, so it does not matter which worker answers,
how far ahead it is, or when it was started. Only the process that trains hears SIGINT, SIGTERM and SIGUSR1: a terminal,
Jupyter's stop button and schedulers send them to the whole group, and a run needs its workers to reach the boundary.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker, util
from typing import Any, cast

import torch
from torch.utils.data import DataLoader

from labkit.errors import DataError, LabkitError
from labkit.loading.fetching import Source
from labkit.randomness import torch_generator

STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
LOOK_EVERY = 1.0  # seconds between looks whether a silent worker still lives
GRACE = 3.0  # seconds that a worker has to finish its example before it is killed

Request = tuple[int, list[int]]


class WorkerError(LabkitError):
    """A worker process died. The training state is as it was before the fetch."""


class Crew:
    """Workers that answer requests in order. They start when the crew is made and end with stop(), or at exit."""

    def __init__(self, source: Source, requests: Iterable[Request], workers: int, method: str, prefetch: int) -> None:
        with warnings.catch_warnings(), _shielded(tracked=method != "fork"):
            warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
            loader: DataLoader[Any] = DataLoader(
                _Remote(source),  # type: ignore[arg-type]  # all that torch asks for is __getitems__
                batch_sampler=requests,  # type: ignore[arg-type]  # one request is one "batch of indices"
                collate_fn=_as_it_is,
                num_workers=workers,
                prefetch_factor=prefetch,
                multiprocessing_context=method,
                worker_init_fn=_Beginning.here(),
                generator=torch_generator("loader", source.seed),  # else the start would draw from the global stream
                timeout=LOOK_EVERY,
            )
            self._iterator = cast(Any, iter(loader))
        self._processes: list[Any] = list(self._iterator._workers)
        # At exit Python asks daemons to go by SIGTERM, which ours do not hear, and would wait for ever.
        atexit.register(self.stop)

    def take(self) -> Any:
        """The answer to the next request. Raises WorkerError for a dead worker, and what the data set raised."""
        while True:
            try:
                answer = next(self._iterator)
                break
            except (RuntimeError, OSError, EOFError) as error:
                if str(error).startswith("DataLoader timed out"):
                    continue  # slow, not dead: torch looked
                if not str(error).startswith("Caught ") and (dead := self._dead()):
                    raise _died(dead) from error
                raise
        if isinstance(answer, LabkitError):
            raise answer
        return answer

    def stop(self) -> None:
        """End all workers: those in the middle of an example have a few seconds, then they are killed."""
        atexit.unregister(self.stop)
        timer = threading.Timer(GRACE, self._kill)
        timer.daemon = True
        timer.start()
        try:
            # What the iterator does when it is deleted; said aloud here, so that an error does not get lost.
            self._iterator._shutdown_workers()
        except RuntimeError as error:
            if "is killed by signal" not in str(error):  # torch reports the workers that the timer killed
                raise
        finally:
            timer.cancel()
            self._kill()
            for process in self._processes:
                process.join()

    def _kill(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()

    def _dead(self) -> list[Any]:
        connection.wait([process.sentinel for process in self._processes], timeout=LOOK_EVERY)
        return [process for process in self._processes if not process.is_alive()]


def _died(dead: Sequence[Any]) -> WorkerError:
    code = dead[0].exitcode
    if code is not None and code < 0:
        how = f"was ended by {signal.Signals(-code).name}"
        reasons = {"SIGKILL": "often a lack of memory", "SIGBUS": "often a full /dev/shm"}
        why = reasons.get(signal.Signals(-code).name, "a crash in native code, or somebody's signal")
    else:
        how, why = f"exited with code {code}", "the messages above this one say more"
    return WorkerError(
        f"worker process {dead[0].pid} {how} ({why})",
        "workers that live as long as the run",
        "use fewer workers, or workers=0; in a script, start the run below `if __name__ == '__main__':`",
    )


# ------------------------------------------------------------------------------------------- inside the worker process


class _Remote:
    """The source as torch's loader wants to see it: a data set whose `__getitems__` answers one request."""

    def __init__(self, source: Source) -> None:
        self.source, self.sent = source, False

    def __getitems__(self, request: Request) -> Any:
        try:
            batch = self.source.batch(*request)
            if not self.sent:
                _check_batch(batch)
                self.sent = True
            return batch
        except LabkitError as error:
            return error  # torch would turn it into a text


def _as_it_is(batch: Any) -> Any:
    return batch


def _check_batch(batch: Any) -> None:
    # torch's queue prints a pickling error in the worker, and the other side waits for ever.
    try:
        pickle.dumps(batch)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise DataError(
            f"a batch cannot be sent from a worker process: {error}",
            "batches of tensors and plain values",
            "let collate return such a batch, or set workers=0",
        ) from error


@dataclass(frozen=True)
class _Beginning:
    """What a worker does first: become deaf to stop signals, and compute as the process that trains does."""

    dtype: torch.dtype
    matmul: str
    deterministic: bool

    @classmethod
    def here(cls) -> _Beginning:
        return cls(
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
        )

    def __call__(self, worker: int) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        torch.set_num_threads(1)
        torch.set_default_dtype(self.dtype)
        torch.set_float32_matmul_precision(self.matmul)
        # What torch.use_deterministic_algorithms does, without importing the compiler into every worker (seconds).
        torch._C._set_deterministic_algorithms(self.deterministic)
        util.Finalize(None, _leave, exitpriority=-1000)


def _leave() -> None:
    # Unloading torch takes most of a second. A forked worker leaves in this way, too.
    if sys.exc_info()[0] is None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


@contextmanager
def _shielded(tracked: bool) -> Iterator[None]:
    """Processes started inside are born deaf to stop signals; one sent meanwhile reaches this process afterwards.

    Blocked and not ignored, so that no press of Ctrl-C gets lost. Torch's handler for ended children is taken out
    again: it would raise in the middle of an update, where the fetch finds a dead worker at a harmless place.
    """
    in_main = threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGCHLD")
    handler = signal.getsignal(signal.SIGCHLD) if in_main else None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS) if hasattr(signal, "pthread_sigmask") else None
    try:
        if tracked and mask is not None:
            resource_tracker.ensure_running()  # Python's own helper process; its start unblocks
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        yield
    finally:
        if handler is not None:
            signal.signal(signal.SIGCHLD, handler)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
