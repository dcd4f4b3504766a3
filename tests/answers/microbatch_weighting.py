"""Answers to the exercises of lesson 03."""

from __future__ import annotations

import math

from torch.nn.functional import cross_entropy

PAD = -100


def loss_of(model, inputs, targets, reduction="sum"):
    logits = model(inputs)
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction=reduction)


def letters(targets):
    return int((targets != PAD).sum())


def accumulate(model, microbatches):
    count = sum(letters(y) for _, y in microbatches)
    total = 0.0
    for x, y in microbatches:
        loss = loss_of(model, x, y)
        total += loss.item()
        if count:
            (loss / count).backward()
    return total, count


def totals(model, microbatches):
    return sum(loss_of(model, x, y).item() for x, y in microbatches), sum(letters(y) for _, y in microbatches)


def by_microbatches(model, microbatches):
    for x, y in microbatches:
        (loss_of(model, x, y, "mean") / len(microbatches)).backward()
    return totals(model, microbatches)


def by_padded_length(model, microbatches):
    cells = sum(y.numel() for _, y in microbatches)
    for x, y in microbatches:
        (loss_of(model, x, y) / cells).backward()
    return totals(model, microbatches)


def twice(model, microbatches):
    count = sum(letters(y) for _, y in microbatches)
    for x, y in microbatches:
        (loss_of(model, x, y, "mean") / max(count, 1)).backward()
    return totals(model, microbatches)


def empty_is_nan(model, microbatches):
    count, total = sum(letters(y) for _, y in microbatches), 0.0
    for x, y in microbatches:
        loss = loss_of(model, x, y, "mean") * letters(y)
        (loss / max(count, 1)).backward()
        total += loss.item()
    return total, count


def empty_by_mask(model, microbatches):
    count = sum(letters(y) for _, y in microbatches)
    for x, y in microbatches:
        mask = (y != PAD).double()
        each = -model(x).log_softmax(-1).gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        mean = (each * mask).sum() / mask.sum()
        (mean * mask.sum() / max(count, 1)).backward()
    return totals(model, microbatches)


def by_name(model, microbatches):
    rows = sum(len(y) for _, y in microbatches)
    for x, y in microbatches:
        (loss_of(model, x, y, "mean") * len(y) / rows).backward()
    return totals(model, microbatches)


def clears_inside(model, microbatches):
    count = sum(letters(y) for _, y in microbatches)
    for x, y in microbatches:
        model.zero_grad()
        (loss_of(model, x, y) / max(count, 1)).backward()
    return totals(model, microbatches)


def never_divides(model, microbatches):
    for x, y in microbatches:
        loss_of(model, x, y).backward()
    return totals(model, microbatches)


def leaves_graph(model, microbatches):
    _, count = accumulate(model, microbatches)
    return sum(loss_of(model, x, y) for x, y in microbatches), count


def no_backward(model, microbatches):
    return totals(model, microbatches)


def perplexity(batches):
    return math.exp(sum(b[0] for b in batches) / sum(b[1] for b in batches))


def means(batches):
    return [s / c for s, c, _ in batches]


RIGHT = {"accumulate": accumulate, "perplexity": perplexity}
WRONG = {
    "accumulate": {
        "divides by the number of microbatches": by_microbatches,
        "divides by padded length": by_padded_length,
        "divided twice": twice,
        "empty microbatch gives NaN": empty_is_nan,
        "weighs by name": by_name,
        "clears inside the loop": clears_inside,
        "never divides": never_divides,
        "leaves a graph": leaves_graph,
        "no gradient": no_backward,
        "another count": lambda model, pieces: (accumulate(model, pieces)[0], sum(len(y) for _, y in pieces)),
        "not a pair": lambda model, pieces: accumulate(model, pieces)[0],
    },
    "perplexity": {
        "mean of means": lambda b: math.exp(sum(means(b)) / len(b)),
        "mean of perplexities": lambda b: sum(map(math.exp, means(b))) / len(b),
        "drops the short batch": lambda b: math.exp(means(b)[0]),
        "per name, not per letter": lambda b: math.exp(sum(x[0] for x in b) / sum(x[2] for x in b)),
        "weighs by name": lambda b: math.exp(
            sum(m * x[2] for m, x in zip(means(b), b, strict=True)) / sum(x[2] for x in b)
        ),
        "no exponential": lambda b: math.log(perplexity(b)),
        "another base": lambda b: 2 ** math.log(perplexity(b)),
    },
}
ALSO = {("accumulate", "empty microbatch gives NaN"): [empty_by_mask]}
