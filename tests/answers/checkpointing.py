"""Answers to the exercises of lesson 04."""

from __future__ import annotations

import copy

import torch

from labkit.lab.checks.checkpointing import Run
from labkit.lab.checks.checkpointing.which_piece import _made

lost = {letter: piece for letter, (_, piece) in _made(0).items()}


def swapped(true, said):
    return {letter: said if piece == true else piece for letter, piece in lost.items()}


def which_piece(straight, resumed):
    first = [key for key in straight[0] if straight[0][key] != resumed[0][key]]
    if "indices" in first:
        return "cursor"
    if "rate" in first:
        return "schedule"
    if "loss" in first:
        return "generator"
    if "parameters" in first:
        return "optimizer"
    if "evaluated" in first:
        return "buffers"
    return "average" if "evaluated average" in first else "nothing"


def blames_optimizer(straight, resumed):
    piece = which_piece(straight, resumed)
    return "optimizer" if piece == "generator" else piece


def parts(recipe, state):
    model = recipe.model()
    optimizer = recipe.optimizer(model)
    schedule = recipe.schedule(optimizer)
    return model, optimizer, schedule


def restore(recipe, state):
    state = copy.deepcopy(state)
    model, optimizer, schedule = parts(recipe, state)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    torch.set_rng_state(state["random"])
    return Run(model, optimizer, schedule, state["average"], state["epoch"], state["cursor"], state["update"])


def late_schedule(recipe, state):
    run = restore(recipe, state)
    run.schedule = recipe.schedule(run.optimizer)
    run.schedule.load_state_dict(state["schedule"])
    return run


def early_generator(recipe, state):
    torch.set_rng_state(state["random"])
    noise = recipe.model()
    state_after = torch.get_rng_state()
    run = restore(recipe, state)
    torch.set_rng_state(state_after)
    del noise
    return run


def no_generator(recipe, state):
    run = restore(recipe, state)
    torch.manual_seed(0)
    return run


def no_cursor(recipe, state):
    run = restore(recipe, state)
    run.cursor = 0
    return run


def no_epoch(recipe, state):
    run = restore(recipe, state)
    run.epoch = 0
    return run


def loose(recipe, state):
    state = copy.deepcopy(state)
    model, optimizer, schedule = parts(recipe, state)
    model.load_state_dict(state["model"], strict=False)
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    torch.set_rng_state(state["random"])
    return Run(model, optimizer, schedule, state["average"], state["epoch"], state["cursor"], state["update"])


def average_in_model(recipe, state):
    run = restore(recipe, state)
    run.model.load_state_dict({**run.model.state_dict(), **run.average})
    return run


def by_reference(recipe, state):
    model, optimizer, schedule = parts(recipe, state)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    torch.set_rng_state(state["random"])
    return Run(model, optimizer, schedule, state["average"], state["epoch"], state["cursor"], state["update"])


def no_optimizer(recipe, state):
    run = restore(recipe, state)
    run.optimizer.state.clear()
    return run


def no_average(recipe, state):
    run = restore(recipe, state)
    run.average = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    return run


def no_schedule(recipe, state):
    model, optimizer, schedule = parts(recipe, state)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
    torch.set_rng_state(state["random"])
    average = copy.deepcopy(state["average"])
    return Run(model, optimizer, schedule, average, state["epoch"], state["cursor"], state["update"])


RIGHT = {"which_piece": lost, "restore": restore}
WRONG = {
    "which_piece": {
        "epoch in place of cursor": swapped("cursor", "epoch"),
        "optimizer in place of generator": swapped("generator", "optimizer"),
        "optimizer in place of schedule": swapped("schedule", "optimizer"),
        "nothing in place of average": swapped("average", "nothing"),
        "nothing in place of buffers": swapped("buffers", "nothing"),
        "average in place of buffers": swapped("buffers", "average"),
        "buffers in place of average": swapped("average", "buffers"),
        "another piece": swapped("optimizer", "cursor"),
        "not a piece": swapped("optimizer", "adam"),
        "not the table": {"A": "cursor"},
    },
    "restore": {
        "schedule built after the optimizer was loaded": late_schedule,
        "generator restored too early": early_generator,
        "generator forgotten": no_generator,
        "cursor forgotten": no_cursor,
        "epoch forgotten": no_epoch,
        "loads loosely": loose,
        "average loaded into the model": average_in_model,
        "state kept by reference": by_reference,
        "optimizer not loaded": no_optimizer,
        "average not put back": no_average,
        "schedule not loaded": no_schedule,
        "not a run": lambda recipe, state: restore(recipe, state).model,
    },
}
ALSO = {("which_piece", "optimizer in place of generator"): [blames_optimizer]}
