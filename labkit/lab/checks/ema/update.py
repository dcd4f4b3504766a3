"""Check of lesson 06: keeping an average of the weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from labkit import randomness
from labkit.lab.checks.frame import call, check, near, not_yet

LESSON = "06_ema"
MANY = 10**9


class One(nn.Module):
    """One weight and a counter, so that every number can be checked by hand."""

    def __init__(self, weight: float, seen: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([weight]))
        self.seen: Tensor
        self.register_buffer("seen", torch.tensor(seen))


def copied(model: nn.Module) -> dict[str, Tensor]:
    """An average that starts as a copy of the model: name -> tensor, buffers included."""
    return copy.deepcopy({name: value.detach() for name, value in model.state_dict().items()})


@check("ema_update", LESSON, minutes=10)
def check_ema_update(answer: Callable[..., Any], seed: int) -> str:
    """`ema_update(average, model, decay, count, committed=True)`: move the average towards the model, in place.

    average: name -> tensor for every entry of model.state_dict(); count: updates done before. The decay used is
    min(decay, (1 + count) / (10 + count)). Floats are averaged, whole numbers copied, a skipped attempt moves nothing.
    """
    rng = randomness.numpy_generator("check ema", seed)
    old, new = (2.0, 4.0) if seed == 0 else (float(rng.integers(1, 9)), float(rng.integers(10, 20)))
    decay = 0.9 if seed == 0 else 0.8 + 0.02 * (seed % 8)
    _judge_one(answer, old, new, decay)
    _judge_warmup(answer, old, new)
    average, model = copied(One(old)), One(new)
    before = copied(model)
    call(answer, average, model, decay, 5, committed=False)
    if float(average["weight"]) != old:
        not_yet(
            "moves on a skipped attempt",
            "The attempt was refused, the average moved; it counts committed updates only.",
            expected=f"{old:g}",
            seen=f"{float(average['weight']):.4g}",
            smallest="committed=False",
            try_next="Return at once when the attempt was not committed.",
        )
    if any(not torch.equal(before[name], value) for name, value in model.state_dict().items()):
        not_yet(
            "moves the model",
            expected="the model as it was",
            seen="another weight",
            try_next="Write into the average only.",
        )
    return "The average is a copy of its own, by the right decay, and moves with committed updates only."


def _judge_one(answer: Callable[..., Any], old: float, new: float, decay: float) -> None:
    average, model = copied(One(old, seen=99)), One(new, seen=100)
    kept = average["weight"]
    call(answer, average, model, decay, MANY)
    now, due, case = average["weight"], decay * old + (1 - decay) * new, f"old {old:g}, new {new:g}, decay {decay:g}"
    if now.data_ptr() == model.weight.data_ptr() or float(model.weight.detach()) != new:
        not_yet(
            "shared storage",
            f"Your average and the model are the same memory: the model is now {float(model.weight.detach()):.4g}.",
            expected=f"the model still at {new:g}",
            seen="one tensor under two names",
            smallest=case,
            try_next="Change the numbers of the average in place, with mul_ and add_.",
        )
    if now.requires_grad or now.grad_fn is not None:
        not_yet(
            "graph recorded",
            "The average has a gradient history that grows with every update.",
            expected="plain numbers",
            seen="a tensor with a history",
            smallest=case,
            try_next="Work inside torch.no_grad(), or with .detach().",
        )
    _judge_value(float(now), due, old, new, decay, case)
    if now is not kept and float(kept) == old:
        not_yet(
            "replaces in place of changing",
            "Whoever holds the old tensor keeps the old average.",
            expected="the same tensor with other numbers",
            seen="another tensor",
            smallest=case,
            try_next="Use mul_ and add_ on the tensor itself.",
        )
    seen = average["seen"]
    if float(seen) != 100:
        not_yet(
            "whole number averaged" if not near(float(seen), 99) else "whole number not copied",
            f"`seen` is {float(seen):.4g}; a counter has no average.",
            expected="100, copied from the model",
            seen=f"{float(seen):.4g}",
            smallest="a counter, 99 in the average and 100 in the model",
            try_next="Ask value.is_floating_point(); copy the others.",
        )


def _judge_value(now: float, due: float, old: float, new: float, decay: float, case: str) -> None:
    if near(now, due, 1e-5):
        return
    if near(now, decay * new + (1 - decay) * old, 1e-5):
        not_yet(
            "swapped weights",
            f"Old {old:g}, new {new:g}, decay {decay:g}: expected {due:.4g}, you have {now:.4g}. The old value "
            "keeps the large share.",
            expected=f"{due:.4g}",
            seen=f"{now:.4g}",
            smallest=case,
            try_next="decay belongs to the average, 1 - decay to the model.",
        )
    if now == old:
        not_yet(
            "nothing moved",
            expected=f"{due:.4g}",
            seen=f"{now:.4g}",
            smallest=case,
            try_next="Write into the given tensors.",
        )
    not_yet(
        "another value",
        expected=f"{due:.4g}",
        seen=f"{now:.4g}",
        smallest=case,
        try_next="decay * old + (1 - decay) * new",
    )


def _judge_warmup(answer: Callable[..., Any], old: float, new: float) -> None:
    decay = 0.999
    for count in (0, 1, 5, 50):
        average = copied(One(old))
        call(answer, average, One(new), decay, count)
        used, due = (float(average["weight"]) - new) / (old - new), min(decay, (1 + count) / (10 + count))
        if abs(used - due) < 1e-4:
            continue
        name, hint = "another warm-up", "min(decay, (1 + count) / (10 + count))"
        if abs(used - decay) < 1e-4:
            name, hint = "no warm-up", "Without it the average of an early update is still the random start."
        elif abs(used - (2 + count) / (11 + count)) < 1e-4:
            name, hint = (
                "count off by one",
                f"Update {count + 1} should use {1 + count}/{10 + count}, you used {2 + count}/{11 + count}.",
            )
        elif abs(used - (1 + count) / (10 + count)) < 1e-4:
            name, hint = "warm-up without end", "The decay never exceeds the one that was asked for."
        not_yet(
            name,
            hint,
            expected=f"decay {due:.4g}",
            seen=f"decay {used:.4g}",
            smallest=f"count {count}",
            try_next="count is the number of updates done before this one; the first has 0.",
        )
    average = copied(One(old))
    call(answer, average, One(new), 0.5, 100)
    used = (float(average["weight"]) - new) / (old - new)
    if abs(used - 0.5) > 1e-4:
        not_yet(
            "warm-up without end",
            "The decay never exceeds the one that was asked for.",
            expected="decay 0.5",
            seen=f"decay {used:.4g}",
            smallest="decay 0.5, count 100",
            try_next="Take the smaller of the two.",
        )
