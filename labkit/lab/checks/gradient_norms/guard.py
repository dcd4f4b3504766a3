"""Check of lesson 07: an update that refuses what is not finite."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.lab.checks.frame import call, check, not_yet, shown
from labkit.lab.checks.gradient_norms.guarded import Guarded, good, infinite, root_at_zero, scene

LESSON = "07_gradient_norms"


def _seen(run: Guarded) -> dict[str, Any]:
    moments = {k: v for state in run.optimizer.state.values() for k, v in state.items()}
    return copy.deepcopy(
        {
            "weights": dict(run.model.state_dict()),
            "moments": moments,
            "average": run.average,
            "rate": run.optimizer.param_groups[0]["lr"],
            "schedule": run.schedule.last_epoch,
            "committed": run.committed,
            "attempted": run.attempted,
            "cursor": run.cursor,
        }
    )


def _far(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return sum(float((a[k].double() - b[k].double()).norm()) for k in a)


@check("guarded_update", LESSON, minutes=20)
def check_guarded_update(answer: Callable[..., Any], seed: int) -> str:
    """`guarded_update(run, batch) -> bool`: one attempt; True when it was committed.

    When the loss or any gradient is not finite nothing changes but run.cursor (by len(batch)), run.attempted and
    run.refused_in_a_row, and no gradient is left behind. More than run.max_refused refusals in a row raise.
    A committed attempt moves optimizer, schedule, average, cursor, attempted, committed, and clears refused_in_a_row.
    """
    _judge_good(answer, seed)
    _judge_refused(answer, seed, infinite(seed), "a batch with an infinite entry")
    _judge_refused(answer, seed, root_at_zero(seed), "a finite loss with a NaN gradient (a root at zero under a mask)")
    run = scene(seed)
    call(answer, run, infinite(seed))
    call(answer, run, good(seed))
    if any(not bool(torch.isfinite(p).all()) for p in run.model.parameters()):
        not_yet(
            "gradients left in place",
            "The update after the refusal started from NaN: clear after refusing.",
            expected="finite weights",
            seen="NaN in the weights",
            smallest="a refused batch, then a good one",
            try_next="Clear the gradients before you return.",
        )
    if run.refused_in_a_row != 0:
        not_yet(
            "never forgets a refusal",
            expected="refused_in_a_row 0 after a committed attempt",
            seen=str(run.refused_in_a_row),
            smallest="a refused batch, then a good one",
            try_next="Set it to 0 when an attempt is committed.",
        )
    _judge_cap(answer, seed)
    return "Refused attempts move the cursor and the counts, nothing else, and a broken run says so."


def _judge_good(answer: Callable[..., Any], seed: int) -> None:
    run, batch = scene(seed), good(seed)
    before = _seen(run)
    done = call(answer, run, batch)
    after = _seen(run)
    still = [key for key in ("weights", "average") if _far(before[key], after[key]) == 0]
    still += [key for key in ("schedule", "committed", "attempted", "cursor") if before[key] == after[key]]
    if still:
        not_yet(
            "a good attempt does not commit",
            f"Nothing was wrong with this batch, and {', '.join(still)} did not move.",
            expected="everything moves once",
            seen=f"unchanged: {', '.join(still)}",
            smallest="one good batch",
            try_next="Optimizer, schedule, average_update(), then the counters.",
        )
    wrong = [key for key in ("committed", "attempted", "schedule") if after[key] != before[key] + 1]
    if wrong or after["cursor"] != before["cursor"] + len(batch):
        odd = wrong[0] if wrong else "cursor"
        not_yet(
            "counts otherwise",
            expected=f"counts up by 1, cursor up by {len(batch)}",
            smallest="one good batch",
            seen=f"{odd} went from {before[odd]} to {after[odd]}",
        )
    if done is not True:
        not_yet(
            "another return value",
            expected="True for a committed attempt",
            seen=shown(done),
            try_next="Return True at the end.",
        )


def _judge_refused(answer: Callable[..., Any], seed: int, batch: Tensor, where: str) -> None:
    run = scene(seed)
    before = _seen(run)
    loss = float(run.loss(batch).detach())
    done = call(answer, run, batch)
    after = _seen(run)
    far = _far(before["weights"], after["weights"])
    if far != far or far == float("inf"):
        finite = abs(loss) < float("inf")
        not_yet(
            "tests the loss only" if finite else "no guard",
            f"Loss {loss:.3g}, gradient NaN. Test what the optimizer will use."
            if finite
            else "The weights are not finite any more.",
            expected="weights unchanged",
            seen="NaN in the weights",
            smallest=where,
            try_next="Test every gradient with torch.isfinite.",
        )
    if far:
        not_yet(
            "zeros for NaN",
            f"Weights moved by {far:.2g}: momentum and decay act on a zero gradient.",
            expected="weights unchanged",
            seen=f"moved by {far:.2g}",
            smallest=where,
            try_next="Refuse before the optimizer; do not mend the gradient.",
        )
    if before["rate"] != after["rate"] or before["schedule"] != after["schedule"]:
        not_yet(
            "schedule advanced",
            f"Rate of the next update is {after['rate']:.3g}, expected {before['rate']:.3g}: the schedule counts "
            "committed updates.",
            expected=f"{before['rate']:.3g}",
            seen=f"{after['rate']:.3g}",
            smallest=where,
            try_next="Return before the schedule moves.",
        )
    if _far(before["average"], after["average"]):
        not_yet(
            "average advanced",
            "The average counts committed updates.",
            expected="the average as it was",
            seen="it moved",
            smallest=where,
            try_next="Return before the average moves.",
        )
    if after["committed"] != before["committed"]:
        not_yet(
            "counts a refusal as committed",
            expected=str(before["committed"]),
            seen=str(after["committed"]),
            smallest=where,
            try_next="Committed counts only attempts whose parameters moved.",
        )
    if after["cursor"] == before["cursor"]:
        for _ in range(run.max_refused - 1):
            call(answer, run, batch)
        not_yet(
            "cursor stays",
            f"The same batch would be tried again ({run.max_refused} times here): a skip must move on.",
            expected=f"cursor {before['cursor'] + len(batch)}",
            seen=f"cursor {run.cursor}",
            smallest=where,
            try_next="The cursor moves with every finished attempt.",
        )
    if after["attempted"] != before["attempted"] + 1:
        not_yet(
            "does not count the attempt",
            expected=str(before["attempted"] + 1),
            seen=str(after["attempted"]),
            smallest=where,
            try_next="Attempted counts every try.",
        )
    if any(p.grad is not None and bool(p.grad.any()) for p in run.model.parameters()):
        not_yet(
            "gradients left in place",
            "The next update starts from NaN: clear after refusing.",
            expected="no gradient",
            seen="a gradient that is not finite",
            smallest=where,
            try_next="optimizer.zero_grad() before you return.",
        )
    if done is not False:
        not_yet(
            "another return value",
            expected="False for a refused attempt",
            seen=shown(done),
            smallest=where,
            try_next="Return False.",
        )


def _judge_cap(answer: Callable[..., Any], seed: int) -> None:
    run = scene(seed)
    for tried in range(1, 51):
        try:
            answer(run, infinite(seed))
        except Exception:  # the refusal that is asked for
            if tried <= run.max_refused:
                not_yet(
                    "gives up too early",
                    expected=f"{run.max_refused} refusals in a row are allowed",
                    seen=f"an exception at {tried}",
                )
            return
    not_yet(
        "no cap",
        f"{tried} refusals in a row and no error: that is not a bad batch, that is a broken run.",
        expected=f"an exception after {run.max_refused}",
        seen=f"{tried} refusals",
        smallest=f"{run.max_refused + 1} bad batches",
        try_next="Count refusals in a row, raise above run.max_refused.",
    )
