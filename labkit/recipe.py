"""What a user supplies: data, model, objective, all rebuilt from the config in a fresh process. Lesson 01."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from labkit.config import OptionValue, RunConfig, field_names, parse, parse_bool, unknown_name
from labkit.errors import ConfigError, ExportError, RecipeError

Transform = Callable[[Any, np.random.Generator], Any]


@dataclass(frozen=True)
class Option:
    """A setting of one recipe: its default (which fixes its type), the values it may take, one line of help."""

    default: OptionValue
    choices: tuple[OptionValue, ...] = ()
    help: str = ""

    def parse(self, name: str, value: Any) -> OptionValue:
        """The value in the option's type; texts of a command line are read. Raises ConfigError."""
        kind = type(self.default)
        if isinstance(value, str) and kind is not str:
            try:
                value = parse_bool(name, value) if kind is bool else kind(value)
            except ValueError:
                raise ConfigError(f"{name}={value!r}", f"a value of type {kind.__name__}", "correct it") from None
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise ConfigError(f"{name}={value!r}", f"a value of type {kind.__name__}", "correct it")
        if self.choices and value not in self.choices:
            raise ConfigError(f"{name}={value!r}", "one of " + ", ".join(map(str, self.choices)), "choose one of them")
        return value


@dataclass(frozen=True)
class Splits:
    """Map-style data sets: `len(split)` and `split[index]` give one example; indices run from 0.

    A data set may offer `__getitems__(indices)`, as torch has it: what that returns goes to collate().
    transform(example, rng) -> example is for the training split only; rng is keyed by (seed, epoch, index).
    """

    train: Any
    validation: Any = None
    transform: Transform | None = None


class Recipe(ABC):
    """What to train. Four methods are needed; the others have defaults that suit most cases.

    A recipe holds no state: `model`, `optimizer` and `splits` are called once in each process, with the same config.
    """

    name: ClassVar[str]
    options: ClassVar[Mapping[str, Option]] = {}

    @abstractmethod
    def splits(self, config: RunConfig) -> Splits:
        """The data sets, and the random transform of the training split if there is one."""

    @abstractmethod
    def model(self, config: RunConfig) -> nn.Module:
        """A new model with initial weights; drawn under a seed of its own."""

    @abstractmethod
    def objective(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        """The loss of a batch as a *sum* over its valid targets (0-d tensor) and their number."""

    @abstractmethod
    def count(self, batch: Any) -> int:
        """The number of valid targets in a batch, from the targets alone."""

    def prefers(self, options: Mapping[str, OptionValue]) -> Mapping[str, Any]:
        """Values of RunConfig that suit this recipe, given its options; a user's settings win over them."""
        return {}

    def optimizer(self, config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW over all trainable parameters with config.rate and config.weight_decay."""
        trainable = [p for p in model.parameters() if p.requires_grad]
        if not trainable:
            raise RecipeError("the model has no trainable parameters", "at least one", "check the recipe's model()")
        return torch.optim.AdamW(trainable, lr=config.rate, weight_decay=config.weight_decay)

    def schedule(self, config: RunConfig, optimizer: torch.optim.Optimizer) -> Any | None:
        """A torch scheduler of your own, advanced on config.schedule_clock; None: the one that the config names."""
        return None

    def collate(self, examples: Sequence[Any]) -> Any:
        """One batch from several examples."""
        return torch.utils.data.default_collate(list(examples))

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, tuple[Tensor | float, int]]:
        """Validation metrics of a batch, each as (sum, count). "loss" is always present."""
        summed, count = self.objective(model, batch)
        return {"loss": (summed, count)}

    def fingerprint(self, config: RunConfig) -> Mapping[str, str] | None:
        """One digest per split (see file_digest, tensor_digest). None: unverified, which the run says aloud."""
        return None

    def tally(self, batch: Any) -> Mapping[str, int]:
        """Counts of a training batch worth recording, such as examples by class or truncated sequences; summed up."""
        return {}

    def generators(self) -> Mapping[str, torch.Generator | np.random.Generator]:
        """Explicit generators that your code draws from during training; they are saved and restored by name."""
        return {}

    def stateful(self) -> Mapping[str, Any]:
        """Further objects with state_dict() and load_state_dict() that change during training, by name."""
        return {}

    def samples(self, model: nn.Module, config: RunConfig) -> Sequence[Mapping[str, Any]]:
        """Qualitative outputs for samples.jsonl, stored every config.samples_every evaluations: fixed inputs, always.

        Each a mapping of plain values: prompt, output, reference (what a good answer looks like), seed, decoding.
        Called in eval mode; draw from a generator made here from the seed: the same weights give the same samples.
        """
        return ()

    # --- for exports; only what you want to use later is needed ---------------------------------------------------

    def describe_export(self, config: RunConfig) -> Mapping[str, Any]:
        """What a user of the exported model must know beside its weights, as plain values for JSON.

        Names that labkit knows: "labels", "vocabulary", "preprocessing", "inputs" ({"kind": "text" or "numbers",
        "each": how many, "meaning": in words}), "decoding" (the settings of predict(), with their stored values).
        """
        return {}

    def rebuild(self, config: RunConfig, description: Mapping[str, Any]) -> nn.Module:
        """The model of an export, to be filled with its weights; override it to build without the training data."""
        return self.model(config)

    def predict(self, model: nn.Module, inputs: Any, *args: Any, **settings: Any) -> Sequence[Mapping[str, Any]]:
        """One mapping of plain values for each input; settings are those of "decoding", and "labels" if described."""
        raise ExportError(
            f"the recipe {type(self).__name__} has no predict()", "predict(model, inputs, **settings)", "write one"
        )


def resolve(recipe: Recipe, reference: str, settings: Mapping[str, Any]) -> RunConfig:
    """The full config from a recipe and the user's settings; texts are read by type.

    Raises ConfigError for an unknown name (the nearest one is said) and for values that cannot be used.
    """
    known = set(field_names())
    clash = known & set(recipe.options)
    if clash:
        raise RecipeError(f"the recipe's option {min(clash)!r} has the name of a RunConfig field", "another name", "")
    options = {name: option.default for name, option in recipe.options.items()}
    fields: dict[str, Any] = {}
    for name, value in settings.items():
        if name in recipe.options:
            options[name] = recipe.options[name].parse(name, value)
        elif name in known:
            fields[name] = parse(name, value) if isinstance(value, str) else value
        else:
            raise unknown_name(name, known | set(recipe.options))
    return RunConfig(recipe=reference, options=options, **{**recipe.prefers(options), **fields})


def file_digest(*paths: Path | str) -> str:
    """SHA-256 (hex) over the contents of files, in the order given."""
    total = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as handle:
            total.update(hashlib.file_digest(handle, "sha256").digest())
    return total.hexdigest()


def tensor_digest(*tensors: Tensor) -> str:
    """SHA-256 (hex) over shapes, dtypes and values of tensors, in the order given."""
    total = hashlib.sha256()
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        total.update(f"{tuple(plain.shape)} {plain.dtype};".encode())
        total.update(plain.flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
