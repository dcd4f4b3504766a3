"""Answers to the exercises of lesson 06."""

from __future__ import annotations

from contextlib import contextmanager

import torch


def used(decay, count):
    return min(decay, (1 + count) / (10 + count))


def with_decay(average, model, d):
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                average[name].mul_(d).add_(value, alpha=1 - d)
            else:
                average[name].copy_(value)


def ema_update(average, model, decay, count, committed=True):
    if committed:
        with_decay(average, model, used(decay, count))


def swapped(average, model, decay, count, committed=True):
    if committed:
        with_decay(average, model, 1 - used(decay, count))


def shared(average, model, decay, count, committed=True):
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            value.mul_(1 - used(decay, count)).add_(average[name], alpha=used(decay, count))
        average[name] = value


def whole_averaged(average, model, decay, count, committed=True):
    if committed:
        d = used(decay, count)
        with torch.no_grad():
            for name, value in model.state_dict().items():
                new = d * average[name] + (1 - d) * value
                if value.is_floating_point():
                    average[name].copy_(new)
                else:
                    average[name] = new


def whole_left(average, model, decay, count, committed=True):
    if committed:
        d = used(decay, count)
        with torch.no_grad():
            for name, value in model.named_parameters():
                average[name].mul_(d).add_(value, alpha=1 - d)


def recorded(average, model, decay, count, committed=True):
    if committed:
        d = used(decay, count)
        for name, value in model.named_parameters():
            average[name] = d * average[name] + (1 - d) * value


def replaced(average, model, decay, count, committed=True):
    if committed:
        d = used(decay, count)
        for name, value in model.state_dict().items():
            average[name] = d * average[name] + (1 - d) * value if value.is_floating_point() else value.clone()


def ahead(average, model, decay, count, committed=True):
    if committed:
        with_decay(average, model, used(decay, count + 1))


def no_warmup(average, model, decay, count, committed=True):
    if committed:
        with_decay(average, model, decay)


def endless(average, model, decay, count, committed=True):
    if committed:
        with_decay(average, model, (1 + count) / (10 + count) if count < 10**6 else decay)


def moves_on_skip(average, model, decay, count, committed=True):
    with_decay(average, model, used(decay, count))


@contextmanager
def borrowed(model, average):
    own = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(average)
    try:
        yield model
    finally:
        model.load_state_dict(own)


@contextmanager
def by_reference(model, average):
    own = model.state_dict()
    model.load_state_dict(average)
    try:
        yield
    finally:
        model.load_state_dict(own)


@contextmanager
def by_arithmetic(model, average):
    own = {n: b.clone() for n, b in model.named_buffers()}
    away = {name: average[name] - p.detach() for name, p in model.named_parameters()}
    model.load_state_dict(average)
    held = {name: p.detach().clone() for name, p in model.named_parameters()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(held[name] - away[name] + 1e-7)
        model.load_state_dict(own, strict=False)


@contextmanager
def no_finally(model, average):
    own = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(average)
    yield
    model.load_state_dict(own)


@contextmanager
def no_buffers(model, average):
    own = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.load_state_dict(average)
    try:
        yield
    finally:
        model.load_state_dict(own, strict=False)


@contextmanager
def weights_only(model, average):
    own = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict({n: average[n] for n, _ in model.named_parameters()}, strict=False)
    try:
        yield
    finally:
        model.load_state_dict(own)


@contextmanager
def swaps_names(model, average):
    own = {name: value.clone() for name, value in model.state_dict().items()}
    kept = {name: p.data for name, p in model.named_parameters()}
    buffers = {name: average[name] for name, _ in model.named_buffers()}
    for name, p in model.named_parameters():
        p.data = average[name]
    model.load_state_dict(buffers, strict=False)
    try:
        yield
    finally:
        for name, p in model.named_parameters():
            p.data = kept[name]
        model.load_state_dict(own)


@contextmanager
def swallows(model, average):
    own = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(average)
    try:
        yield
    except Exception:
        pass
    model.load_state_dict(own)


@contextmanager
def nothing(model, average):
    yield


RIGHT = {"ema_update": ema_update, "borrowed": borrowed}
WRONG = {
    "ema_update": {
        "swapped weights": swapped,
        "shared storage": shared,
        "whole number averaged": whole_averaged,
        "whole number not copied": whole_left,
        "graph recorded": recorded,
        "replaces in place of changing": replaced,
        "count off by one": ahead,
        "no warm-up": no_warmup,
        "warm-up without end": endless,
        "moves on a skipped attempt": moves_on_skip,
        "nothing moved": lambda average, model, decay, count, committed=True: average.copy(),
    },
    "borrowed": {
        "backup by reference": by_reference,
        "gives back by arithmetic": by_arithmetic,
        "no finally": no_finally,
        "buffers forgotten": no_buffers,
        "average changed too": swaps_names,
        "swallows the exception": swallows,
        "nothing borrowed": nothing,
        "not a context": lambda model, average: 3,
    },
}
ALSO = {("borrowed", "buffers forgotten"): [weights_only]}
