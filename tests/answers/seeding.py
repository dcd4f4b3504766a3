"""Answers to the exercises of lesson 02."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from labkit import randomness


def look(model, loader, reduction="sum"):
    total, count = 0.0, 0
    with torch.no_grad():
        for x, y in loader:
            total += cross_entropy(model(x), y, reduction=reduction).item()
            count += len(y)
    return total, count


def evaluate(model, loader):
    modes = [(module, module.training) for module in model.modules()]
    with randomness.preserved():
        model.eval()
        total = look(model, loader)
    for module, mode in modes:
        module.training = mode
    return total


def back(model, modes):
    for module, mode in modes:
        module.training = mode


def modes_of(model):
    return [(module, module.training) for module in model.modules()]


def only_eval_and_no_grad(model, loader):
    modes = modes_of(model)
    model.eval()
    total = look(model, loader)
    back(model, modes)
    return total


def reseeds(model, loader):
    total = only_eval_and_no_grad(model, loader)
    torch.manual_seed(0)
    np.random.seed(0)
    return total


def torch_only(model, loader):
    state = torch.get_rng_state()
    total = only_eval_and_no_grad(model, loader)
    torch.set_rng_state(state)
    return total


def ends_in_train(model, loader):
    with randomness.preserved():
        model.eval()
        total = look(model, loader)
    model.train()
    return total


def stays_in_eval(model, loader):
    with randomness.preserved():
        model.eval()
        return look(model, loader)


def mean(model, loader):
    total, count = evaluate(model, loader)
    return total / count


def mean_sum(model, loader):
    modes = modes_of(model)
    with randomness.preserved():
        model.eval()
        total = look(model, loader, reduction="mean")
    back(model, modes)
    return total


def in_train_mode(model, loader):
    with randomness.preserved():
        return look(model, loader)


def counts_batches(model, loader):
    return evaluate(model, loader)[0], len(loader)


def leaves_graph(model, loader):
    modes = modes_of(model)
    with randomness.preserved():
        model.eval()
        total = sum(cross_entropy(model(x), y, reduction="sum") for x, y in loader)
    back(model, modes)
    return total, len(loader.dataset)


def word_of(difference, half):
    if difference + half < 0:
        return "better"
    return "worse" if difference - half > 0 else "cannot tell"


def verdict(a, b):
    off = b - a
    if len(off) < 2:
        return "cannot tell", off.mean(), math.inf
    half = 2 * off.std(ddof=1) / math.sqrt(len(off))
    return word_of(off.mean(), half), off.mean(), half


def best_with_best(a, b):
    _, difference, half = verdict(a, b)
    if len(a) < 2:
        return "cannot tell", difference, half
    return "better" if b.min() < a.min() else "worse", difference, half


def not_paired(a, b):
    half = 2 * math.sqrt((a.var() + b.var()) / len(a))
    return word_of((b - a).mean(), half), (b - a).mean(), half


def deviation(a, b):
    off = b - a
    half = 2 * off.std()
    return word_of(off.mean(), half), off.mean(), half


def one_seed(a, b):
    off = b - a
    half = 2 * off.std() / math.sqrt(len(off))
    return word_of(off.mean(), half), off.mean(), half


def sign_only(a, b):
    _, difference, half = verdict(a, b)
    return "better" if difference < 0 else "worse", difference, half


def upside_down(a, b):
    word, difference, half = verdict(a, b)
    return {"better": "worse", "worse": "better"}.get(word, word), difference, half


def exchanged(a, b):
    return verdict(b, a)


RIGHT = {"evaluate": evaluate, "verdict": verdict}
WRONG = {
    "evaluate": {
        "draws from torch's generator": only_eval_and_no_grad,
        "re-seeds in place of restoring": reseeds,
        "restores torch only": torch_only,
        "ends in train mode": ends_in_train,
        "leaves eval mode behind": stays_in_eval,
        "returns a mean": mean,
        "looks in train mode": in_train_mode,
        "counts batches": counts_batches,
        "leaves a graph": leaves_graph,
    },
    "verdict": {
        "compares best with best": best_with_best,
        "not paired": not_paired,
        "standard deviation, not standard error": deviation,
        "one seed gives a verdict": one_seed,
        "ignores the spread": sign_only,
        "direction": upside_down,
        "not a verdict": lambda a, b: "better",
        "never decides": lambda a, b: ("cannot tell", *verdict(a, b)[1:]),
    },
}
ALSO = {("evaluate", "returns a mean"): [mean_sum], ("verdict", "direction"): [exchanged]}
