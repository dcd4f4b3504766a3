"""One update, from top to bottom. Everything it changes is in RunState. Lesson 01 writes it by hand first.

    fetch - forward - backward - measure - guard - apply - commit

A *boundary* is the moment after update() has returned: counters, records and decisions agree, and only there may a run
stop or be saved. An exception inside leaves the live objects torn; the loop then refuses to go on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit import norms, order
from labkit.config import RunConfig
from labkit.device import to_device
from labkit.errors import NonfiniteError, RecipeError, TornStateError
from labkit.loading import Feed, Fetched
from labkit.recipe import Recipe
from labkit.records.monitors import LayerMonitor
from labkit.records.stages import Stages
from labkit.state import KeptBuffer, RunState, kept_buffers, put_back

NO_TARGETS, BACKED_OFF = "no valid targets", "scaler backed off"
"""Reasons for a skip that are in order; every other one is the guard's."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The record of one attempt at an update: deterministic quantities only, equal in every exact continuation."""

    attempt: int  # counted from 1
    update: int  # updates committed after this attempt
    epoch: int  # of the examples used
    cursor: int  # examples of that epoch consumed after this attempt
    examples: int  # of committed updates so far
    tokens: int  # valid targets of committed updates so far
    indices: str  # digest of the example indices, in order
    loss_sum: float
    loss_count: int  # valid targets of this attempt
    grad_norm: float | None  # 2-norm before clipping, unscaled
    clipped: bool
    update_norm: float | None  # 2-norm of the change of the parameters, where asked for
    rates_used: tuple[float, ...]  # per parameter group
    rates_next: tuple[float, ...]
    scale: float | None  # fp16 loss scale used
    skipped: str | None  # why the parameters did not move
    tally: Mapping[str, int] | None  # what Recipe.tally() counted in the data of this attempt
    layers: Mapping[str, Any] | None  # norms of every layer, where asked for; kept in a file of its own

    @property
    def refused(self) -> bool:
        """The guard refused it: neither empty nor skipped by the scaler, but an incident."""
        return self.skipped is not None and self.skipped not in {NO_TARGETS, BACKED_OFF}


class Loop:
    """Owns nothing that moves beside the torn mark and what the present attempt's record will carry."""

    def __init__(self, recipe: Recipe, config: RunConfig, state: RunState, feed: Feed, stages: Stages) -> None:
        self.recipe, self.config, self.state, self.feed, self.stages = recipe, config, state, feed, stages
        self.device = torch.device(config.device)
        self.torn: str | None = None
        self._monitor = LayerMonitor(state.model, config.monitor_every)
        self._has_buffers = any(True for _ in state.model.buffers())
        self._groups = len(state.optimizer.param_groups)

    def update(self) -> Attempt:
        """One attempt at an update, to the next boundary.

        Raises NonfiniteError when the guard refuses and the config says so, TornStateError after an earlier exception.
        """
        state, config, enter = self.state, self.config, self.stages.enter
        self.refuse_if_torn()

        # 1 fetch: all microbatches of the update, and how many valid targets they hold together
        enter("data")
        fetched = self.feed.next()
        counts = [self.recipe.count(batch) for batch in fetched.microbatches]  # on the CPU, where it waits for nothing
        total_count = sum(counts)
        enter("transfer")
        batches = fetched.microbatches
        if self.device.type != "cpu":
            batches = [to_device(batch, self.device) for batch in batches]
        rates_used = self._rates()
        if total_count == 0:
            return self._commit(fetched, rates_used, skipped=NO_TARGETS)

        # 2, 3 forward and backward: each microbatch adds its share of sum / total count
        self.torn = "forward"
        buffers = self._buffers()
        state.optimizer.zero_grad(set_to_none=True)  # also what a refused attempt left
        loss: Tensor | float = 0.0
        for batch, count in zip(batches, counts, strict=True):
            if count == 0:
                continue
            enter("forward")
            with state.precision.autocast():
                summed, found = self.recipe.objective(state.model, batch)
            if found != count:
                raise _count_error(found, count)
            enter("backward")
            state.precision.scale(summed / total_count).backward()
            loss = loss + summed.detach()
        loss_sum = float(loss)

        # 4 measure: the gradient of the whole update, unscaled, before anything is clipped
        enter("measure")
        self.torn = "measure"
        if len(state.optimizer.param_groups) != self._groups:
            raise _group_error(len(state.optimizer.param_groups), self._groups)
        scale = state.precision.current_scale
        parameters = [p for group in state.optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm: float | None = None
        if math.isfinite(loss_sum):
            state.precision.unscale_(state.optimizer)
            norm = norms.gradient_norm([p.grad for p in parameters])

        # 5 guard: a nonfinite loss or gradient never reaches parameters, buffers, average, optimizer or schedule
        refused = self._refusal(loss_sum, norm, scale)
        if refused is not None:
            self._put_back(buffers)
            return self._refuse(fetched, refused, loss_sum, total_count, norm, rates_used, scale)

        # 6 apply: clip, optimizer, schedule, average
        enter("optimizer")
        self.torn = "optimizer"
        number = state.counters.committed + 1
        monitored = self._monitor.due(number)
        if monitored:
            self._monitor.before()
        clipped = False
        if config.max_norm is not None and norm is not None and math.isfinite(norm):
            clipped = norms.clip_([p.grad for p in parameters], norm, config.max_norm)
        measured = config.norm_every and number % config.norm_every == 0
        before = norms.snapshot(parameters) if measured else None
        if not state.precision.apply(state.optimizer):
            self._put_back(buffers)
            self._monitor.discard()
            return self._skip_by_scaler(fetched, loss_sum, total_count, norm, rates_used, scale)
        update_norm = norms.update_norm(parameters, before) if before is not None else None
        layers = self._monitor.after(state.counters.attempted + 1, number) if monitored else None

        # 7 commit: counters, cursor, schedule and average follow what was applied; then the record
        return self._commit(
            fetched, rates_used, loss_sum=loss_sum, loss_count=total_count, grad_norm=norm, clipped=clipped,
            update_norm=update_norm, scale=scale, layers=layers,
        )  # fmt: skip

    def _commit(self, fetched: Fetched, rates_used: tuple[float, ...], **measured: Any) -> Attempt:
        state, counters = self.state, self.state.counters
        counters.attempted += 1
        state.cursor = fetched.cursor_after
        skipped = measured.get("skipped")
        if skipped is None:
            counters.committed += 1
            counters.examples += len(fetched.indices)
            counters.tokens += measured["loss_count"]
            counters.skips_in_a_row = counters.scaler_skips_in_a_row = 0
            self._advance_schedule()
            if state.ema is not None:
                self.stages.enter("ema")
                state.ema.update(state.model)
        elif skipped == NO_TARGETS:
            counters.empty += 1
        self.stages.enter("record")
        self.torn = None
        return Attempt(
            attempt=counters.attempted, update=counters.committed, epoch=fetched.epoch,
            cursor=fetched.start + len(fetched.indices), examples=counters.examples, tokens=counters.tokens,
            indices=order.digest(fetched.indices), rates_used=rates_used, rates_next=self._rates(),
            tally=self._tally(fetched), **{**_NOTHING_MEASURED, **measured},
        )  # fmt: skip

    def _refuse(
        self, fetched: Fetched, why: str, loss: float, count: int, norm: float | None, rates: tuple[float, ...],
        scale: float | None,
    ) -> Attempt:  # fmt: skip
        """The guard's refusal: nothing moves but cursor, attempted and skipped counters, and the streams drawn from."""
        counters = self.state.counters
        if self.config.on_nonfinite == "raise":
            raise NonfiniteError(
                f"attempt {counters.attempted + 1} after update {counters.committed}: {why}",
                "a finite loss and gradient",
                "look at this attempt with `replay`, or resume with on_nonfinite=skip",
            )
        counters.skipped += 1
        counters.skips_in_a_row += 1
        attempt = self._commit(
            fetched, rates, loss_sum=loss, loss_count=count, grad_norm=norm, scale=scale, skipped=why
        )  # fmt: skip
        if counters.skips_in_a_row > self.config.max_skips:
            raise NonfiniteError(
                f"{counters.skips_in_a_row} attempts in a row were refused, the last because: {why}",
                f"at most {self.config.max_skips} in a row",
                "that is no odd batch but a broken run: look at the rate, the data and the model",
            )
        return attempt

    def _skip_by_scaler(
        self, fetched: Fetched, loss: float, count: int, norm: float | None, rates: tuple[float, ...],
        scale: float | None,
    ) -> Attempt:  # fmt: skip
        """The fp16 scaler found an infinite scaled gradient, left the parameters and backed off."""
        counters = self.state.counters
        counters.scaler_skipped += 1
        counters.scaler_skips_in_a_row += 1
        attempt = self._commit(
            fetched, rates, loss_sum=loss, loss_count=count, grad_norm=norm, scale=scale, skipped=BACKED_OFF
        )
        if counters.scaler_skips_in_a_row > self.config.max_scaler_skips:
            raise NonfiniteError(
                f"the fp16 scaler skipped {counters.scaler_skips_in_a_row} attempts in a row, scale {scale:g}",
                f"at most {self.config.max_scaler_skips} in a row",
                "lower the rate, or train with precision=bf16",
            )
        return attempt

    def _refusal(self, loss: float, norm: float | None, scale: float | None) -> str | None:
        """Why this attempt must not be applied, or None. An infinite *scaled* gradient is the scaler's own affair."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if norm is not None and not math.isfinite(norm) and scale is None:
            named = ((name, p.grad) for name, p in self.state.model.named_parameters())
            return f"the gradient of {norms.first_nonfinite(named)} is not finite"
        return None

    def refuse_if_torn(self) -> None:
        """Raise TornStateError when an exception has struck inside an update."""
        if self.torn is not None:
            raise TornStateError(
                f"an exception during {self.torn!r} left the live objects half updated",
                "objects at a boundary",
                "reload from the last checkpoint: run.resume(folder)",
            )

    def _tally(self, fetched: Fetched) -> dict[str, int] | None:
        """What the recipe counts in its data, added up over the microbatches."""
        found: dict[str, int] = {}
        for batch in fetched.microbatches:
            for name, count in self.recipe.tally(batch).items():
                found[name] = found.get(name, 0) + count
        return found or None

    def _advance_schedule(self) -> None:
        counters, clock = self.state.counters, self.config.schedule_clock
        if clock == "updates":
            self.state.schedule.advance(counters.committed)
        elif clock == "examples":
            self.state.schedule.advance(counters.examples)
        elif clock == "epochs":
            self.state.schedule.advance(self.state.cursor.epoch)

    def _rates(self) -> tuple[float, ...]:
        return tuple(float(group["lr"]) for group in self.state.optimizer.param_groups)

    def _buffers(self) -> list[KeptBuffer]:
        """Buffers and copies: forward moves BatchNorm statistics before anyone knows whether the loss is finite."""
        return kept_buffers(self.state.model) if self._has_buffers else []

    def _put_back(self, buffers: list[KeptBuffer]) -> None:
        put_back(buffers)


_NOTHING_MEASURED: dict[str, Any] = {
    "loss_sum": 0.0, "loss_count": 0, "grad_norm": None, "clipped": False, "update_norm": None, "scale": None,
    "skipped": None, "layers": None,
}  # fmt: skip


def _count_error(found: int, counted: int) -> RecipeError:
    return RecipeError(
        f"objective() returned the count {found}, count() said {counted} for the same batch",
        "the same number from both",
        "count valid targets in one function and call it from both",
    )


def _group_error(found: int, built: int) -> RecipeError:
    return RecipeError(
        f"the optimizer has {found} parameter groups, and had {built} when it was built",
        "the same groups all along: a resume builds them anew",
        "give every group to the optimizer at the start, and let requires_grad say which parameters move",
    )
