"""Equality as a detector: it must stay silent on equal runs, and name the first difference, cause before effect."""

from __future__ import annotations

import json
import math
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stops import UPDATES, split
from torch import Tensor, nn
from toys import Items, Toy

from labkit import run
from labkit.build import build
from labkit.config import RunConfig
from labkit.errors import ConfigError, ProofError, RunFolderError
from labkit.proof import PIECES, Ablation, ablate, compare, first_difference, prove
from labkit.proof.ablate import leaves_band
from labkit.proof.prove import parse_stops
from labkit.proof.reachable import leaves
from labkit.proof.rehearse import Rehearsal
from labkit.proof.transplant import read_reachable, transplant, write_reachable
from labkit.recipe import Splits, resolve

ROOT = Path(__file__).resolve().parents[1]
TOY = f"{ROOT}/tests/toys.py:Toy"

# --- the first difference --------------------------------------------------------------------------------------------


def records(n: int = 5, **changes: dict[int, Any]) -> list[dict[str, Any]]:
    """n plain records; changes: quantity -> {attempt: value}."""
    made = [
        {"attempt": k, "update": k, "segment": 0, "indices": f"i{k}", "loss_sum": 1.0 / k, "grad_norm": None,
         "rates_used": [0.1], "rates_next": [0.1], "parameters": f"p{k}"}
        for k in range(1, n + 1)
    ]  # fmt: skip
    for name, values in changes.items():
        for attempt, value in values.items():
            made[attempt - 1][name] = value
    return made


def test_equal_records_have_no_difference_whatever_the_segment() -> None:
    assert first_difference(records(), records(segment={4: 1, 5: 1})) is None


@pytest.mark.parametrize(
    ("changes", "attempt", "quantity"),
    [
        ({"loss_sum": {3: 0.0}, "indices": {4: "x"}}, 3, "loss_sum"),
        ({"loss_sum": {3: 0.0}, "indices": {3: "x"}, "parameters": {3: "q"}}, 3, "indices"),
        ({"parameters": {2: "q"}, "rates_next": {2: [0.2]}}, 2, "parameters"),
        ({"rates_used": {2: [0.2]}, "loss_sum": {2: 9.0}}, 2, "rates_used"),
        ({"grad_norm": {5: 1.0}}, 5, "grad_norm"),
        ({"loss_sum": {2: 0.5 + 2**-53}}, 2, "loss_sum"),
    ],
)
def test_the_earliest_attempt_and_there_the_cause_is_named(changes: Any, attempt: int, quantity: str) -> None:
    found = first_difference(records(), records(**changes))
    assert found is not None and (found.attempt, found.quantity) == (attempt, quantity)


def test_floats_are_equal_only_in_every_bit_and_nan_equals_nan() -> None:
    nan = records(loss_sum={2: math.nan})
    assert first_difference(nan, records(loss_sum={2: math.nan})) is None
    assert first_difference(records(loss_sum={2: 0.0}), records(loss_sum={2: -0.0})) is not None
    assert first_difference(nan, records()) is not None


def test_a_run_that_ends_earlier_differs_in_length() -> None:
    found = first_difference(records(5), records(3))
    assert found is not None and (found.attempt, found.quantity, found.left, found.right) == (
        4, "length", "5 attempts", "3 attempts",
    )  # fmt: skip


def test_what_an_evaluation_recorded_belongs_to_its_attempt() -> None:
    line = {"attempt": 2, "update": 2, "validation": {"loss": [1.0, 2]}, "best": True, "rates_next": [0.1]}
    left, right = [*records(), line], [*records(), {**line, "validation": {"loss": [1.5, 2]}}]
    assert first_difference(left, [*records(), dict(line)]) is None
    found = first_difference(left, right)
    assert found is not None and (found.attempt, found.quantity) == (2, "validation")
    assert first_difference(left, records()) is not None


# --- compare ---------------------------------------------------------------------------------------------------------


def test_compare_finds_a_split_run_equal_in_records_and_state(tmp_path: Path) -> None:
    split(tmp_path / "a", Toy, 9, save_every=3, eval_every=2)
    split(tmp_path / "b", Toy, 4, 5, 9, save_every=3, eval_every=2)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.equal and found.attempts == 9 and found.state_equal_until == 9 and not found.config
    assert str(found).startswith("equal: 9 attempts in every recorded bit")
    json.dumps(found.to_dict())


def test_compare_names_the_first_quantity_and_the_checkpoints_around_it(tmp_path: Path) -> None:
    class Nudged(Toy):
        def objective(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
            summed, count = super().objective(model, batch)
            return (summed * (1 + 2**-20) if model.training and len(self.seen) == 5 else summed), count

    split(tmp_path / "a", Toy, 9, save_every=3, keep=9)
    split(tmp_path / "b", Nudged, 9, save_every=3, keep=9)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert not found.equal and found.difference is not None
    assert (found.difference.update, found.difference.quantity) == (5, "loss_sum")
    assert (found.state_equal_until, found.state_differs_at) == (3, 6) and "parameters" in found.state_parts


def test_compare_finds_a_difference_that_no_record_shows(tmp_path: Path) -> None:
    """A buffer that nothing reads: the trajectory is equal, the state is not."""

    class Silent(Toy):
        def model(self, config: RunConfig) -> nn.Module:
            model = super().model(config)
            model.register_buffer("note", torch.tensor(float(self.value)))
            return model

        value = 0

    class Other(Silent):
        value = 1

    split(tmp_path / "a", Silent, 3)
    split(tmp_path / "b", Other, 3)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert not found.equal and found.difference is None and found.state_parts == ("buffers",)
    assert "the saved states are not" in str(found)


def test_compare_says_what_was_configured_differently_or_overridden(tmp_path: Path) -> None:
    split(tmp_path / "a", Toy, 3)
    split(tmp_path / "b", Toy, 3, rate=0.02)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.difference is not None and found.difference.quantity == "rates_used"
    assert found.config == ("rate is 0.01 and 0.02",)
    with run.resume(tmp_path / "a", recipe=Toy(), threads=2, overrides=["threads"], updates=4) as session:
        session.train()
    assert compare(tmp_path / "a", tmp_path / "b").inexact == ("a",)


def test_compare_refuses_what_is_no_run(tmp_path: Path) -> None:
    split(tmp_path / "a", Toy, 1)
    with pytest.raises(RunFolderError):
        compare(tmp_path / "a", tmp_path)


# --- rehearse and ablate ---------------------------------------------------------------------------------------------

EVERYTHING: dict[str, Any] = {
    "updates": 12, "jitter": True, "ema_decay": 0.9, "ema_warmup": True, "eval_every": 1, "eval_weights": "ema",
    "schedule": "cosine", "horizon": 20, "warmup": 2, "patience": 50,
}  # fmt: skip


@pytest.fixture(scope="module")
def everything() -> Ablation:
    return ablate(Toy(), stop=8, seeds=2, **EVERYTHING)


HURTS: dict[str, tuple[str, str]] = {
    "optimizer": ("parameters", "training"),
    "first moment": ("parameters", "training"),
    "second moment": ("parameters", "training"),
    "both moments": ("parameters", "training"),
    "optimizer counts": ("parameters", "training"),
    "schedule": ("rates_used", "training"),
    "average": ("ema.average", "evaluation only"),
    "average's count": ("ema.average", "evaluation only"),
    "buffers": ("buffers", "evaluation only"),
    "cursor": ("indices", "training"),
    "epoch": ("indices", "training"),
    "torch stream": ("loss_sum", "training"),
    "best": ("best", "selection only"),
}


@pytest.mark.parametrize("piece", HURTS)
def test_a_lost_piece_is_noticed_at_the_first_update_and_where_it_hurts(piece: str, everything: Ablation) -> None:
    loss = next(loss for loss in everything.losses if loss.piece == piece)
    quantity, hurts = HURTS[piece]
    assert loss.kept and loss.difference is not None and loss.difference.update == 9
    assert loss.difference.quantity.startswith(quantity) and loss.hurts == hurts


def test_losing_nothing_changes_nothing(everything: Ablation) -> None:
    assert everything.losses[0].piece == "nothing" and everything.losses[0].difference is None
    assert [loss.piece for loss in everything.losses[1:]] == list(PIECES)
    json.dumps(everything.to_dict())


@pytest.mark.parametrize("piece", ["python stream", "numpy stream", "momentum", "scaler", "cuda streams"])
def test_a_piece_that_this_recipe_does_not_use_is_reported_as_such(piece: str, everything: Ablation) -> None:
    loss = next(loss for loss in everything.losses if loss.piece == piece)
    assert loss.difference is None
    assert ("keeps no such piece" if not loss.kept else "nothing changed") in str(loss)


def test_momentum_and_scaler_are_pieces_where_they_exist() -> None:
    scaled = {"precision": "fp16", "initial_scale": 64.0, "growth_interval": 3, "momentum": 0.9, "rate": 1e-3}
    found = {loss.piece: loss for loss in ablate(
        Toy(), stop=8, seeds=0, pieces=["momentum", "scaler"], updates=12, **scaled
    ).losses}  # fmt: skip
    assert found["momentum"].difference is not None and found["momentum"].difference.quantity == "parameters"
    assert found["scaler"].difference is not None and found["scaler"].difference.quantity == "scale"


def test_a_lost_patience_moves_the_end_of_the_run() -> None:
    settings = {"metric": "scripted", "mode": "min", "script": "1,2,3,4,5,6", "eval_every": 1, "patience": 50}
    loss = ablate(Toy(), stop=4, seeds=0, pieces=["patience"], updates=6, **settings).losses[1]
    assert loss.difference is not None and loss.difference.quantity.startswith("best")


def test_the_band_is_left_only_outside_of_every_seed() -> None:
    band, straight = np.array([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]), np.array([1.5, 1.5, 0.5])
    assert leaves_band(np.array([1.2, 0.6]), straight, band, 1) is None
    assert leaves_band(np.array([1.2, 0.4]), straight, band, 1) == 3
    assert leaves_band(np.array([math.nan, 1.0]), straight, band, 1) == 2


def test_a_rehearsal_refuses_what_it_cannot_do() -> None:
    rehearsal = Rehearsal(Toy(), resolve(Toy(), "toy", {"updates": 6}), 6, [3], seeds=0)
    assert rehearsal.resumed(3).difference is None and rehearsal.resumed(3).equal.all()
    assert not rehearsal.has("average") and rehearsal.has("cursor")
    with pytest.raises(ProofError, match="no state was kept at 4"):
        rehearsal.resumed(4)
    with pytest.raises(ProofError, match="no piece called 'luck'"):
        rehearsal.resumed(3, ["luck"])
    with pytest.raises(ProofError, match="keeps no average"):
        rehearsal.resumed(3, ["average"])
    with pytest.raises(ProofError, match="a stop at 6"):
        Rehearsal(Toy(), resolve(Toy(), "toy", {"updates": 6}), 6, [6], seeds=0)


def test_a_rehearsal_is_the_run(tmp_path: Path) -> None:
    """Same records as a run folder: probing on the way moves nothing."""
    rehearsal = Rehearsal(Toy(), resolve(Toy(), "toy", {**EVERYTHING}), 12, [8], seeds=0)
    split(tmp_path / "r", Toy, 12, **{k: v for k, v in EVERYTHING.items() if k != "updates"})
    from labkit.records.lines import read_lines

    lines = [line for line in read_lines(tmp_path / "r" / "trajectory.jsonl").records if "loss_sum" in line]
    assert [r["loss_sum"] for r in rehearsal.straight.records] == [line["loss_sum"] for line in lines]


# --- prove -----------------------------------------------------------------------------------------------------------


def test_prove_continues_every_stop_in_a_fresh_process(tmp_path: Path) -> None:
    found = prove(TOY, updates=8, stops=[3, 6], folder=tmp_path, jobs=1, jitter=True, eval_every=4)
    assert found.exact and found.exact_rows == 2 and found.saving is None and found.boundaries == 9
    assert "EXACT: 2 of 2 stops" in found.verdict and str(found).count("equal in every bit") == 2
    json.dumps(found.to_dict())


@pytest.mark.parametrize("stops", [[9], [-1], [(3, 3)], [(5, 3)], "3+x", [()]])
def test_stops_that_do_not_exist_are_refused(stops: Any) -> None:
    from labkit.proof.prove import _chains

    with pytest.raises(ProofError):
        _chains(stops, 8)
    assert parse_stops("3,7, 3+5+8") == [(3,), (7,), (3, 5, 8)]


def test_settings_are_refused_before_a_process_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batch_size"):
        prove(TOY, updates=8, folder=tmp_path, bacth_size=3)
    with pytest.raises(ConfigError, match="where the run ends"):
        prove(TOY, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- what is remembered beside the state -----------------------------------------------------------------------------

LOOSE = {"calls": 0}


class Forgetful(Toy):
    """Remembers in five places that no state knows of."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = torch.Generator().manual_seed(1)
        self.history: list[float] = []
        self.known = torch.Generator()

    def generators(self) -> dict[str, torch.Generator]:
        return {"known": self.known}

    def splits(self, config: RunConfig) -> Splits:
        whole = super().splits(config)
        data = Items(12)
        data.reads = 0  # type: ignore[attr-defined]
        return Splits(data, whole.validation)

    def model(self, config: RunConfig) -> nn.Module:
        model = super().model(config)
        model.first.counter = 0
        return model

    def objective(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        if model.training:
            model.first.counter += 1
            LOOSE["calls"] += 1
            self.history.append(float(torch.rand((), generator=self.rng) + torch.rand((), generator=self.known)))
        return super().objective(model, batch)


def remembered(parts: Any) -> dict[str, str]:
    return {leaf.path: leaf.digest for leaf in leaves(parts)}


def test_every_hiding_place_is_seen_and_its_value_can_be_carried_over(tmp_path: Path) -> None:
    from labkit.engine import Engine

    def made() -> Any:
        recipe = Forgetful()
        return build(recipe, resolve(recipe, "t", {"updates": 9}))

    parts = made()
    LOOSE["calls"] = 0
    before = remembered(parts)
    with Engine(parts) as engine:
        engine.run(3)
    parts.splits.train.reads = 5
    after = remembered(parts)
    changed = {path for path in after if before.get(path) != after[path]}
    expected = {"recipe.rng", "recipe.history", "train data.reads", "model.first.counter"}
    assert expected <= changed and any("LOOSE" in path for path in changed)
    assert not any(word in path for path in after for word in ("weight", "forwards", "known"))  # the state has them

    write_reachable(parts, 3, tmp_path / "seen")
    stored = read_reachable(tmp_path / "seen", 3)
    LOOSE["calls"] = 0
    fresh = made()
    chosen = [stored[path] for path in changed if "seen" not in path]
    torch.save(chosen, tmp_path / "chosen.pt")
    transplant(fresh, tmp_path / "chosen.pt")
    assert fresh.state.model.first.counter == 3 and fresh.splits.train.reads == 5 and LOOSE["calls"] == 3
    assert fresh.recipe.history == parts.recipe.history
    assert torch.equal(fresh.recipe.rng.get_state(), parts.recipe.rng.get_state())
    LOOSE["calls"] = 0


PLANTED: dict[str, tuple[str, str, str]] = {
    # what is planted, the path that must be named, the remedy
    "a counter in a module": (
        """
        class Planted(Toy):
            def model(self, config):
                model = super().model(config)
                model.first.counter = 0
                return model

            def objective(self, model, batch):
                summed, count = super().objective(model, batch)
                if model.training:
                    model.first.counter += 1
                    summed = summed / model.first.counter
                return summed, count
        """,
        "model.first.counter",
        "register_buffer",
    ),
    "an unregistered generator": (
        """
        class Planted(Toy):
            def __init__(self):
                super().__init__()
                self.noise = torch.Generator().manual_seed(7)

            def objective(self, model, batch):
                summed, count = super().objective(model, batch)
                if model.training:
                    summed = summed * (1 + 0.1 * torch.rand((), generator=self.noise))
                return summed, count
        """,
        "recipe.noise",
        "Recipe.generators()",
    ),
    "a data set that changes as it is read": (
        """
        class Growing(Items):
            reads = 0

            def __getitem__(self, index):
                self.reads += 1
                number, features, targets = super().__getitem__(index)
                return number, features * (1 + 0.01 * (self.reads // 24)), targets

        class Planted(Toy):
            def splits(self, config):
                return Splits(Growing(12), Items(10, 1))
        """,
        "train data.reads",
        "same example for the same index",
    ),
    "a global variable": (
        """
        TEMPERATURE = [1.0]

        class Planted(Toy):
            def objective(self, model, batch):
                summed, count = super().objective(model, batch)
                if model.training:
                    TEMPERATURE[0] *= 0.9
                    summed = summed * TEMPERATURE[0]
                return summed, count
        """,
        "global variable TEMPERATURE",
        "Recipe.stateful()",
    ),
}


def planted(body: str, folder: Path) -> str:
    """A file with a recipe of the name Planted."""
    file = folder / "mine.py"
    file.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'tests')!r})\nimport torch\n"
        "from toys import Items, Toy\nfrom labkit.recipe import Splits\n" + textwrap.dedent(body)
    )
    return f"{file}:Planted"


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_omission_is_named_confirmed_and_given_a_remedy(kind: str, tmp_path: Path) -> None:
    body, path, remedy = PLANTED[kind]
    found = prove(planted(body, tmp_path), updates=6, stops=[3], folder=tmp_path / "proof")
    assert not found.exact and "NOT EXACT: 1 of 1" in found.verdict
    assert path in found.missing[0] and "confirmed" in found.missing[0] and remedy in found.missing[0]
    assert found.unseen


@pytest.mark.slow
def test_a_run_that_does_not_repeat_itself_is_said_so(tmp_path: Path) -> None:
    body = """
    import os

    class Planted(Toy):
        def objective(self, model, batch):
            summed, count = super().objective(model, batch)
            return (summed * (1 + int.from_bytes(os.urandom(2), "big") / 1e6) if model.training else summed), count
    """
    found = prove(planted(body, tmp_path), updates=4, stops=[2], folder=tmp_path / "proof")
    assert not found.exact and "does not even repeat itself" in found.missing[0]


@pytest.mark.slow
def test_prove_every_boundary_and_chains_of_stops(tmp_path: Path) -> None:
    found = prove(
        TOY, updates=UPDATES, stops=[0, 1, 3, 6, 7, 14, 15, (8, 10), (1, 3, 5)], folder=tmp_path, jitter=True,
        ema_decay=0.9, eval_every=2, workers=2, start_method="fork", precision="fp16", initial_scale=2.0**24,
        growth_interval=2,
    )  # fmt: skip
    assert found.exact, str(found)


def test_a_proof_needs_an_importable_recipe(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="there is no file"):
        prove(f"{tmp_path}/nothing.py:Mine", updates=3)
