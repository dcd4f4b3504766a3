"""An optimizer's part of the state, by parameter name: torch itself matches by position. Lesson 04."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from labkit.errors import StateError
from labkit.state.model import OTHER, bare
from labkit.state.saved import Saved


def names_by_group(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[str]]:
    """The parameter names of each group. Raises StateError for a tensor that is no parameter of the model."""
    names = {id(parameter): name for name, parameter in bare(model).named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise StateError(
                    f"the optimizer holds a tensor of shape {tuple(parameter.shape)} that is no parameter of the model",
                    "only parameters of the model that is trained",
                    "build the optimizer from model.parameters()",
                )
        groups.append([names[id(parameter)] for parameter in group["params"]])
    return groups


def capture_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> Saved:
    """{"type", "groups": [{"names", hyperparameters}], "state": {parameter name: its state}, "own": the rest}."""
    groups = names_by_group(model, optimizer)
    parameters = dict(bare(model).named_parameters())
    hyper = [{k: v for k, v in g.items() if k not in {"params", "param_names"}} for g in optimizer.param_groups]
    present = {name: optimizer.state.get(parameters[name], {}) for names in groups for name in names}
    return {
        "type": type(optimizer).__name__,
        "groups": [{"names": names, **values} for names, values in zip(groups, hyper, strict=True)],
        "state": {name: dict(state) for name, state in present.items() if state},
        "own": {key: value for key, value in optimizer.state.items() if isinstance(key, str)},
    }


def prepared_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, saved: Saved) -> dict[str, Any]:
    """torch's own form of the saved state in the order of the live parameters. Raises StateError if it does not fit."""
    if saved["type"] != type(optimizer).__name__:
        raise StateError(f"the checkpoint holds the state of {saved['type']}", type(optimizer).__name__, OTHER)
    live = names_by_group(model, optimizer)
    if [set(names) for names in live] != [set(group["names"]) for group in saved["groups"]]:
        raise StateError(
            f"saved parameter groups {[g['names'] for g in saved['groups']]}", f"{live}", "build the same groups again"
        )
    parameters = dict(bare(model).named_parameters())
    position = {name: i for i, name in enumerate(name for names in live for name in names)}
    state: dict[int | str, Any] = dict(saved["own"])
    for name, values in saved["state"].items():
        for key, value in values.items():
            if isinstance(value, Tensor) and value.dim() and value.shape != parameters[name].shape:
                shape, own = tuple(value.shape), tuple(parameters[name].shape)
                if value.numel() == parameters[name].numel():
                    raise StateError(f"optimizer state {key} of {name} has shape {shape}", f"{own}", OTHER)
        state[position[name]] = values
    groups = [
        {**{k: v for k, v in group.items() if k != "names"}, "params": [position[name] for name in names]}
        for group, names in zip(saved["groups"], live, strict=True)
    ]
    return {"state": state, "param_groups": groups}
