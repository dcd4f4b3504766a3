"""Layer monitors: right numbers, None told apart from zero, and nothing done when off."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from labkit.errors import RecordsError
from labkit.records import LineLog
from labkit.records.monitors import LayerMonitor, gradients_by_layer, layer_table


class Net(nn.Module):
    """Four layers: one in use, one unused, one multiplied by zero, one frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.silent, self.frozen = (nn.Linear(2, 2, bias=False) for _ in range(4))
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x).sum() + 0.0 * self.silent(x).sum() + self.frozen(x).sum()


def trained() -> Net:
    model = Net()
    with torch.no_grad():
        model.used.weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    model(torch.tensor([[1.0, 2.0]])).backward()
    return model


def test_unused_zero_and_frozen_parameters_are_told_apart() -> None:
    found = gradients_by_layer(trained())
    assert found["unused"] == ["unused.weight"] and found["zero"] == ["silent.weight"]
    assert found["frozen"] == ["frozen.weight"] and found["first_nonfinite"] is None
    layers = found["layers"]
    assert layers["unused"]["gradient"] is None and layers["silent"]["gradient"] == 0.0
    assert layers["used"]["gradient"] == pytest.approx(math.sqrt(10)) and layers["used"]["weight"] == pytest.approx(5.0)


def test_the_gradient_is_that_before_clipping_and_the_ratio_that_of_update_to_weight_before_k13_06() -> None:
    model = trained()
    optimizer = torch.optim.SGD([model.used.weight], lr=0.5)
    monitor = LayerMonitor(model, every=1)
    monitor.before()
    torch.nn.utils.clip_grad_norm_([model.used.weight], 1.0)
    optimizer.step()
    layer = monitor.after(attempt=8, update=7)["layers"]["used"]
    assert layer["gradient"] == pytest.approx(math.sqrt(10))
    assert layer["update"] == pytest.approx(0.5, rel=1e-5) and layer["weight"] == pytest.approx(5.0)
    assert layer["ratio"] == pytest.approx(0.1, rel=1e-5)


def test_the_first_nonfinite_parameter_is_named_in_the_models_order() -> None:
    model = trained()
    for weight in (model.silent.weight, model.used.weight):
        weight.grad[1, 1] = math.inf
    assert gradients_by_layer(model)["first_nonfinite"] == "used.weight"


def test_looking_changes_neither_gradients_nor_weights_nor_random_streams() -> None:
    model = trained()
    before = (
        [p.detach().clone() for p in model.parameters()],
        [p.grad.clone() for p in model.parameters() if p.grad is not None],
    )
    stream = torch.get_rng_state()
    monitor = LayerMonitor(model, every=1)
    monitor.before()
    monitor.after(1, 1)
    after = list(model.parameters()), [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.equal(a, b) for x, y in zip(before, after, strict=True) for a, b in zip(x, y, strict=True))
    assert torch.equal(stream, torch.get_rng_state())


def test_off_means_never_due_and_every_n_means_every_n() -> None:
    assert not any(LayerMonitor(Net(), 0).due(update) for update in range(10))
    assert [update for update in range(1, 10) if LayerMonitor(Net(), 3).due(update)] == [3, 6, 9]
    with pytest.raises(RecordsError):
        LayerMonitor(Net(), -1)


def test_after_needs_before_and_a_skipped_attempt_is_forgotten() -> None:
    monitor = LayerMonitor(trained(), 1)
    with pytest.raises(RecordsError, match="without before"):
        monitor.after(1, 1)
    monitor.before()
    monitor.discard()
    with pytest.raises(RecordsError, match="without before"):
        monitor.after(1, 1)


def test_lines_come_back_as_arrays_by_layer_with_nan_where_nothing_was(tmp_path: Path) -> None:
    model = trained()
    monitor = LayerMonitor(model, 1)
    with LineLog(tmp_path / "monitors.jsonl") as log:
        for update in (1, 2):
            monitor.before()
            log.append(monitor.after(update, update))
            model.used.weight.grad.fill_(math.nan)
    updates, table = layer_table(tmp_path / "monitors.jsonl")
    assert updates.tolist() == [1, 2] and list(table) == ["used", "unused", "silent", "frozen"]
    assert table["used"]["gradient"][0] == pytest.approx(math.sqrt(10)) and math.isnan(table["used"]["gradient"][1])
    assert np.isnan(table["unused"]["gradient"]).all() and (table["silent"]["gradient"] == 0).all()
    assert (table["used"]["ratio"] == 0).all()
