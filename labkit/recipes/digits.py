"""Handwritten digits, 8 by 8 pixels, ten classes: the recipe of lessons 00, 01 and 04.

`network=mlp` has dropout, so a resume must bring back its generator; `network=conv` has BatchNorm: its buffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from labkit.config import OptionValue, RunConfig
from labkit.errors import DataError
from labkit.recipe import Option, Recipe, Splits
from labkit.recipes import shipped

FILES = {part: f"digits-{part}.csv" for part in ("train", "validation", "test")}
SIDE, CLASSES, INK = 8, 10, 16
NOISE = 0.05

Example = tuple[Tensor, Tensor]
"""An image (1, 8, 8) float32 in 0..1 and its label, 0-d int64. A batch has one more dimension in front of both."""


class DigitData(Dataset[Example]):
    """One part of the digits: `images` (n, 1, 8, 8) float32 in 0..1 and `labels` (n,) int64."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Example:
        return self.images[index], self.labels[index]

    def __getitems__(self, indices: Sequence[int]) -> Example:
        """The batch at once: one indexing operation in place of one for each example."""
        where = torch.as_tensor(indices, dtype=torch.int64)
        return self.images[where], self.labels[where]


def load(part: str) -> DigitData:
    """The "train" (1,257), "validation" (270) or "test" (270) digits. Raises DataError for a damaged file."""
    if part not in FILES:
        raise DataError(f"the digits have no part {part!r}", "one of " + ", ".join(FILES), "choose one of them")
    lines = shipped.read(FILES[part]).split()
    table = np.array([line.split(",") for line in lines], dtype=np.int64)
    images = torch.from_numpy(table[:, 1:]).to(torch.float32).div(INK).reshape(-1, 1, SIDE, SIDE)
    return DigitData(images, torch.from_numpy(table[:, 0].copy()))


class Digits(Recipe):
    """Classify the digits. Data sets, networks and transform can be imported and used alone."""

    name: ClassVar[str] = "digits"
    options: ClassVar[Mapping[str, Option]] = {
        "network": Option("mlp", ("mlp", "conv"), "mlp: two layers and dropout; conv: two convolutions and BatchNorm"),
        "augment": Option(False, help="shift each training image by at most one pixel and add slight noise"),
    }

    def prefers(self, options: Mapping[str, OptionValue]) -> Mapping[str, Any]:
        """Rates at which each network learns within 200 updates."""
        if options["network"] == "conv":
            return {"batch_size": 64, "rate": 0.01, "weight_decay": 0.01}
        return {"batch_size": 64, "rate": 0.003, "weight_decay": 0.01}

    def splits(self, config: RunConfig) -> Splits:
        """1,257 training and 270 validation digits."""
        return Splits(load("train"), load("validation"), shift_and_noise if config.options["augment"] else None)

    def model(self, config: RunConfig) -> nn.Module:
        """The network that the option names, with fresh weights."""
        return mlp() if config.options["network"] == "mlp" else conv()

    def objective(self, model: nn.Module, batch: Example) -> tuple[Tensor, int]:
        """Summed cross entropy in nats and the number of images."""
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels, reduction="sum"), len(labels)

    def count(self, batch: Example) -> int:
        """The number of images."""
        return len(batch[1])

    def collate(self, examples: Any) -> Example:
        """A batch from a list of examples; one that `DigitData.__getitems__` made passes through."""
        if isinstance(examples, tuple):
            return examples
        images, labels = zip(*examples, strict=True)
        return torch.stack(images), torch.stack(labels)

    def metrics(self, model: nn.Module, batch: Example) -> Mapping[str, tuple[Tensor | float, int]]:
        """Loss and accuracy, as (sum, count)."""
        images, labels = batch
        scores = model(images)
        summed, count = nn.functional.cross_entropy(scores, labels, reduction="sum"), len(labels)
        return {"loss": (summed, count), "accuracy": ((scores.argmax(1) == labels).sum(), count)}

    def fingerprint(self, config: RunConfig) -> Mapping[str, str]:
        """SHA-256 of the file of each split."""
        return shipped.fingerprint({part: FILES[part] for part in ("train", "validation")})

    def describe_export(self, config: RunConfig) -> Mapping[str, Any]:
        """What an exported model is told apart from its weights: labels, how pixels become an image."""
        return {
            "labels": [str(number) for number in range(CLASSES)],
            "inputs": {"kind": "numbers", "each": SIDE * SIDE, "meaning": "ink of each pixel, 0 to 16, row by row"},
            "preprocessing": {"divide_by": INK, "shape": [1, SIDE, SIDE]},
            "decoding": {},
        }

    def predict(self, model: nn.Module, inputs: Any, labels: Sequence[str]) -> list[dict[str, Any]]:
        """Label and probabilities of each image: rows of 64 numbers 0..16, or a tensor (n, 1, 8, 8) in 0..1."""
        if not isinstance(inputs, Tensor):
            inputs = torch.tensor(inputs, dtype=torch.float32).div(INK).reshape(-1, 1, SIDE, SIDE)
        rows = probabilities(model, inputs.to(next(model.parameters()).device)).tolist()
        named = [dict(zip(labels, row, strict=True)) for row in rows]
        return [{"label": max(chances, key=chances.__getitem__), "probabilities": chances} for chances in named]


def mlp() -> nn.Sequential:
    """64 pixels, 64 hidden units with ReLU and dropout 0.2, 10 classes: 4,810 parameters."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(SIDE * SIDE, 64),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(64, CLASSES),
    )


def conv() -> nn.Sequential:
    """Two 3x3 convolutions (8 and 16 channels) with BatchNorm and ReLU, one linear layer: 11,522 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * SIDE * SIDE, CLASSES),
    )


def shift_and_noise(example: Example, rng: np.random.Generator) -> Example:
    """The image moved by -1, 0 or 1 pixel each way plus normal noise of deviation NOISE, cut to 0..1.

    What moves in at the edge is 0. A pure function of both arguments: all randomness comes from rng, and the example is
    not written to.
    """
    image, label = example
    down, right = (int(move) for move in rng.integers(-1, 2, size=2))
    padded = nn.functional.pad(image, (1, 1, 1, 1))
    moved = padded[:, 1 - down : 1 - down + SIDE, 1 - right : 1 - right + SIDE]
    noise = torch.from_numpy(rng.standard_normal(tuple(moved.shape), dtype=np.float32))
    return (moved + NOISE * noise).clamp(0, 1), label


@torch.no_grad()
def probabilities(model: nn.Module, images: Tensor) -> Tensor:
    """Class probabilities (n, 10) float32 of images (n, 1, 8, 8), in eval mode; every module's mode comes back."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        return model.eval()(images).float().softmax(-1)
    finally:
        for module, training in modes:
            module.training = training
