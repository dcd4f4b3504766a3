"""Answers to the exercises of lesson 01."""

from __future__ import annotations

from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_


def loss_of(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


def update(model, optimizer, schedule, batch, max_norm):
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    clip_grad_norm_(model.parameters(), max_norm)
    rate = optimizer.param_groups[0]["lr"]
    optimizer.step()
    schedule.step()
    return loss.item(), rate


def schedule_first(model, optimizer, schedule, batch, max_norm):
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    clip_grad_norm_(model.parameters(), max_norm)
    schedule.step()
    rate = optimizer.param_groups[0]["lr"]
    optimizer.step()
    return loss.item(), rate


def next_rate(model, optimizer, schedule, batch, max_norm):
    loss, _ = update(model, optimizer, schedule, batch, max_norm)
    return loss, schedule.get_last_lr()[0]


def clears_late(model, optimizer, schedule, batch, max_norm):
    loss = loss_of(model, batch)
    loss.backward()
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.zero_grad()
    rate = optimizer.param_groups[0]["lr"]
    optimizer.step()
    schedule.step()
    return loss.item(), rate


def never_clears(model, optimizer, schedule, batch, max_norm):
    loss = loss_of(model, batch)
    loss.backward()
    clip_grad_norm_(model.parameters(), max_norm)
    rate = optimizer.param_groups[0]["lr"]
    optimizer.step()
    schedule.step()
    return loss.item(), rate


def clips_after(model, optimizer, schedule, batch, max_norm):
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    rate = optimizer.param_groups[0]["lr"]
    optimizer.step()
    clip_grad_norm_(model.parameters(), max_norm)
    schedule.step()
    return loss.item(), rate


def clips_before_backward(model, optimizer, schedule, batch, max_norm):
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    clip_grad_norm_(model.parameters(), max_norm)
    loss.backward()
    rate = optimizer.param_groups[0]["lr"]
    optimizer.step()
    schedule.step()
    return loss.item(), rate


def graph_alive(model, optimizer, schedule, batch, max_norm):
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    clip_grad_norm_(model.parameters(), max_norm)
    rate = optimizer.param_groups[0]["lr"]
    optimizer.step()
    schedule.step()
    return loss, rate


def no_schedule(model, optimizer, schedule, batch, max_norm):
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return loss.item(), optimizer.param_groups[0]["lr"]


def late_loss(model, optimizer, schedule, batch, max_norm):
    _, rate = update(model, optimizer, schedule, batch, max_norm)
    return loss_of(model, batch).item(), rate


def no_optimizer(model, optimizer, schedule, batch, max_norm):
    loss = loss_of(model, batch)
    loss.backward()
    return loss.item(), optimizer.param_groups[0]["lr"]


moved = {
    "no_grad": {"batchnorm"},
    "eval_backward": {"gradient"},
    "train_backward": {"gradient", "batchnorm"},
    "zero_gradient": {"weights", "moments"},
    "skipped": set(),
    "full_update": {"weights", "gradient", "moments", "batchnorm", "rate", "committed"},
}
every = moved["full_update"]

RIGHT = {"update": update, "what_moved": moved}
WRONG = {
    "update": {
        "schedule before optimizer": schedule_first,
        "returns the next rate": next_rate,
        "clears before the optimizer": clears_late,
        "never clears": never_clears,
        "clips after the optimizer": clips_after,
        "clips before backward": clips_before_backward,
        "leaves a graph alive": graph_alive,
        "schedule never moves": no_schedule,
        "loss after the update": late_loss,
        "no optimizer": no_optimizer,
        "not a pair": lambda *args: update(*args)[0],
    },
    "what_moved": {
        "no-grad freezes BatchNorm": {**moved, "no_grad": set()},
        "eval stops gradients": {**moved, "eval_backward": []},
        "a zero gradient moves nothing": {**moved, "zero_gradient": ()},
        "a skipped attempt advances the schedule": {**moved, "skipped": {"rate"}},
        "all alike": dict.fromkeys(moved, every),
        "not every cell": {**moved, "train_backward": {"gradient", "weights", "batchnorm"}},
        "not the table": {"no_grad": set()},
    },
}
