"""Check of lesson 04: build everything new and continue exactly."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from labkit import randomness
from labkit.lab.checks.checkpointing.workshop import EXAMPLES, WARMUP, Record, Run, State, Workshop, equal
from labkit.lab.checks.frame import call, check, not_yet, shown

LESSON = "04_checkpointing"
DRAWS = 5_000


@check("restore", LESSON, minutes=20)
def check_restore(answer: Callable[..., Any], seed: int) -> str:
    """`restore(recipe, state) -> Run`: build everything new, put the saved state back, continue exactly.

    recipe has .model(), .optimizer(model), .schedule(optimizer); its defaults differ from the saved run, so saved
    values must win. state has model, optimizer, schedule, average, epoch, cursor, update, random (generator state).
    The state is left as it was, also when the run goes on; one that does not fit is refused with an exception.
    """
    saved = Workshop(seed, rate=0.01)
    run = saved.start()
    for _ in range(12 + seed % 3):
        saved.advance(run)
    state = saved.save(run)
    original = copy.deepcopy(state)
    straight = [saved.advance(run) for _ in range(4)]
    randomness.seed_all("a fresh process", seed)
    recipe = Workshop(seed, rate=0.05)
    got = call(answer, recipe, state)
    noise = torch.get_rng_state()
    if not isinstance(got, Run):
        not_yet("not a run", expected="a Run", seen=shown(got), try_next="End with: return Run(model, optimizer, ...)")
    _judge_weights(got, original, recipe, straight)
    _judge_rate(got, original)
    _judge_place(got, original, recipe)
    _judge_generator(noise, original)
    _judge_continuation(got, recipe, straight, original["update"])
    if not equal(state, original):
        changed = ", ".join(key for key in original if not equal(state[key], original[key]))
        not_yet(
            "state kept by reference",
            f"Your snapshot moved: it was taken at {original['update']} and now holds update {got.update}.",
            expected="the state as it was saved",
            seen=f"changed: {changed}",
            smallest="four updates after restoring",
            try_next="Copy first: copy.deepcopy(state). optimizer.load_state_dict keeps the tensors it is given.",
        )
    _judge_strict(answer, recipe, original)
    return f"Updates {original['update'] + 1} to {got.update} equal the uninterrupted ones in every bit."


def _judge_weights(got: Run, state: State, recipe: Workshop, straight: list[Record]) -> None:
    now = got.model.state_dict()
    if all(torch.equal(now[name], value) for name, value in state["average"].items()):
        torch.set_rng_state(state["random"])
        loss = recipe.advance(copy.deepcopy(got))["loss"]
        not_yet(
            "average loaded into the model",
            f"The first loss is {loss:.3g}, it was {straight[0]['loss']:.3g}: these are the averaged weights.",
            expected="state['model'] in the model",
            seen="state['average'] in the model",
            try_next="The average has its own place: Run(average=...).",
        )
    off = [name for name, value in state["model"].items() if not torch.equal(now[name], value)]
    if off:
        not_yet(
            "model not loaded",
            expected=f"{off[0]} as saved",
            seen="another value",
            smallest=f"{len(off)} of {len(now)} tensors",
            try_next="Load state['model'], buffers included.",
        )
    if not equal(dict(got.average), state["average"]):
        not_yet(
            "average not put back",
            "Training would go on alike; what you evaluate would not.",
            expected="the saved average",
            seen="another one",
            try_next="Run(average=copy of state['average'])",
        )


def _judge_rate(got: Run, state: State) -> None:
    optimizer = got.optimizer.state_dict()
    used, due = optimizer["param_groups"][0]["lr"], state["optimizer"]["param_groups"][0]["lr"]
    update = state["update"] + 1
    if not optimizer["state"]:
        not_yet(
            "optimizer not loaded",
            f"Update {update} looks right; update {update + 1} does not.",
            expected="the saved moments",
            seen="none",
            try_next="optimizer.load_state_dict(...)",
        )
    first = got.schedule.base_lrs[0] / WARMUP, 0.01 / WARMUP, 0.05 / WARMUP
    if used != due and any(abs(used - f) < 1e-12 for f in first):
        not_yet(
            "schedule built after the optimizer was loaded",
            f"Update {update} would use {used:.4g}, saved was {due:.4g}. "
            "Building a warm-up schedule writes into the optimizer.",
            expected=f"{due:.4g}",
            seen=f"{used:.4g}",
            smallest=f"update {update}",
            try_next="Build all parts first, then load all of them.",
        )
    if used != due:
        not_yet(
            "another rate",
            expected=f"{due:.4g}",
            seen=f"{used:.4g}",
            smallest=f"update {update}",
            try_next="Load optimizer and schedule after both are built.",
        )
    if got.schedule.last_epoch != state["schedule"]["last_epoch"]:
        not_yet(
            "schedule not loaded",
            f"Update {update} uses the right rate, the next ones do not.",
            expected=f"count {state['schedule']['last_epoch']}",
            seen=f"count {got.schedule.last_epoch}",
            try_next="schedule.load_state_dict(...)",
        )


def _judge_place(got: Run, state: State, recipe: Workshop) -> None:
    if got.epoch != state["epoch"]:
        not_yet(
            "epoch forgotten", expected=f"epoch {state['epoch']}", seen=f"epoch {got.epoch}", try_next="Run(epoch=...)"
        )
    if got.cursor != state["cursor"]:
        whole = recipe.indices
        seen = {int(i) for at in range(0, state["cursor"], 8) for i in whole(state["epoch"], at)}
        to_come = [int(i) for at in range(got.cursor, EXAMPLES, 8) for i in whole(got.epoch, at)]
        twice, never = len(seen.intersection(to_come)), EXAMPLES - len(seen.union(to_come))
        not_yet(
            "cursor forgotten",
            f"{twice} examples of this epoch would be seen twice, {never} never.",
            expected=f"cursor {state['cursor']}",
            seen=f"cursor {got.cursor}",
            try_next="Run(cursor=state['cursor'])",
        )
    if got.update != state["update"]:
        not_yet(
            "update count forgotten", expected=str(state["update"]), seen=str(got.update), try_next="Run(update=...)"
        )


def _judge_generator(noise: torch.Tensor, state: State) -> None:
    if torch.equal(noise, state["random"]):
        return
    torch.set_rng_state(state["random"])
    for drawn in range(1, DRAWS):
        torch.rand(1)
        if torch.equal(torch.get_rng_state(), noise):
            not_yet(
                "generator restored too early",
                f"Masks differ at the first update: {drawn} numbers were drawn after you had restored the stream.",
                expected="the saved stream, untouched",
                seen=f"{drawn} numbers further",
                try_next="Building the model draws. Restore the generator last.",
            )
    not_yet(
        "generator forgotten",
        "Masks differ at the first update.",
        expected="the saved stream",
        seen="another one",
        try_next="End with torch.set_rng_state(state['random']).",
    )


def _judge_continuation(got: Run, recipe: Workshop, straight: list[Record], update: int) -> None:
    for n, due in enumerate(straight, start=update + 1):
        record = recipe.advance(got)
        off = [key for key in due if due[key] != record[key]]
        if off:
            not_yet(
                "does not continue",
                expected=f"update {n} equal in every bit",
                seen=f"{off[0]} differs",
                smallest=f"update {n}",
                try_next="Which piece reaches this quantity first?",
            )


def _judge_strict(answer: Callable[..., Any], recipe: Workshop, state: State) -> None:
    odd = copy.deepcopy(state)
    odd["model"] = {("head.weight" if key == "4.weight" else key): value for key, value in odd["model"].items()}
    try:
        answer(recipe, odd)
    except Exception:  # any refusal is right here
        return
    not_yet(
        "loads loosely",
        "A renamed layer kept its random weights and nobody was told.",
        expected="an exception",
        seen="a run",
        smallest="a state in which 4.weight is called head.weight",
        try_next="load_state_dict is strict unless told otherwise.",
    )
