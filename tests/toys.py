"""Small recipes whose every number is known, for the tests of the state machine; also named in child processes.

Examples are (index, features (4,), targets): the index makes the data order visible, `targets` says how many valid
targets an example holds. The model counts its training forwards in a buffer, so a metric can follow a script.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from labkit.config import RunConfig
from labkit.randomness import torch_generator
from labkit.recipe import Option, Recipe, Splits, tensor_digest

Example = tuple[int, Tensor, int]


class Items:
    """n examples that depend on their index and the salt alone."""

    def __init__(self, n: int, salt: int = 0, uneven: bool = False, slow: float = 0.0) -> None:
        self.features = torch.randn(n, 4, generator=torch_generator("toy", salt))
        self.targets = [1 + index % 3 if uneven else 1 for index in range(n)]
        self.slow = slow

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> Example:
        if self.slow:
            time.sleep(self.slow)
        return index, self.features[index], self.targets[index]


class Net(nn.Module):
    """Two layers with the parts that carry state: dropout, BatchNorm, a buffer of its own."""

    script: tuple[float, ...] = ()

    def __init__(self, dropout: float = 0.0, norm: bool = False) -> None:
        super().__init__()
        self.register_buffer("forwards", torch.zeros((), dtype=torch.int64))
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(2) if norm else nn.Identity()
        self.drop = nn.Dropout(dropout)
        self.last = nn.Linear(8, 1)

    def forward(self, features: Tensor) -> Tensor:
        if self.training:
            self.forwards += 1
        hidden = self.norm(self.first(features).view(-1, 2, 4)).flatten(1)  # so that one example has a variance, too
        return self.last(self.drop(torch.relu(hidden))).squeeze(-1)


def jitter(example: Example, rng: np.random.Generator) -> Example:
    """A random transform as it should be."""
    index, features, targets = example
    return index, features + torch.from_numpy(rng.standard_normal(4, dtype=np.float32)), targets


class Toy(Recipe):
    """12 examples in batches of 2: six updates an epoch. `seen` holds the indices of every training microbatch."""

    name: ClassVar[str] = "toy"
    options: ClassVar[Mapping[str, Option]] = {
        "n": Option(12, help="training examples"),
        "salt": Option(0, help="other data"),
        "uneven": Option(False, help="1, 2 or 3 targets an example"),
        "dropout": Option(0.25),
        "norm": Option(True, help="with BatchNorm"),
        "jitter": Option(False, help="with a random transform"),
        "momentum": Option(0.0, help="SGD with momentum in place of AdamW"),
        "slow": Option(0.0, help="seconds that each example of the training split takes"),
        "slow_eval": Option(0.0, help="seconds that each example of the validation split takes"),
        "script": Option("", help="values of the metric `scripted` after 1, 2, ... training forwards"),
    }

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def prefers(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"batch_size": 2, "rate": 0.01}

    def splits(self, config: RunConfig) -> Splits:
        has = config.options
        train = Items(int(has["n"]), int(has["salt"]), bool(has["uneven"]), float(has["slow"]))
        return Splits(train, Items(10, 1, False, float(has["slow_eval"])), jitter if has["jitter"] else None)

    def model(self, config: RunConfig) -> nn.Module:
        net = Net(float(config.options["dropout"]), bool(config.options["norm"]))
        net.script = tuple(float(value) for value in str(config.options["script"]).split(",") if value)
        return net

    def optimizer(self, config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
        if config.options["momentum"]:
            return torch.optim.SGD(model.parameters(), config.rate, momentum=float(config.options["momentum"]))
        return super().optimizer(config, model)

    def objective(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        indices, features, targets = batch
        if model.training:
            self.seen.append(indices.tolist())
        errors = (model(features) - features.sum(-1)) ** 2
        return (errors * targets).sum(), int(targets.sum())

    def count(self, batch: Any) -> int:
        return int(batch[2].sum())

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, tuple[Tensor | float, int]]:
        found = dict(super().metrics(model, batch))
        if model.script:
            found["scripted"] = (model.script[min(int(model.forwards), len(model.script)) - 1], 1)
        return found

    def fingerprint(self, config: RunConfig) -> Mapping[str, str]:
        return {"train": tensor_digest(self.splits(config).train.features)}


class Pull(Recipe):
    """One weight w from 0; the loss of an example is its value times w, so the gradient of an update is known."""

    name: ClassVar[str] = "pull"
    options: ClassVar[Mapping[str, Option]] = {}

    def __init__(self, examples: Sequence[tuple[float, int]], start: float = 0.0) -> None:
        self.examples, self.start = list(examples), start

    def prefers(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"batch_size": 1, "rate": 1.0}

    def splits(self, config: RunConfig) -> Splits:
        return Splits(self.examples, self.examples)

    def model(self, config: RunConfig) -> nn.Module:
        model = nn.Module()
        model.w = nn.Parameter(torch.tensor(self.start))
        return model

    def optimizer(self, config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=config.rate, weight_decay=config.weight_decay)

    def objective(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        values, counts = batch
        return (values * counts * model.w).sum().float(), int(counts.sum())

    def count(self, batch: Any) -> int:
        return int(batch[1].sum())
