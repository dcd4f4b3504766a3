"""What must be the same to continue: refused by field and with both values, overridden only by name."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from toys import Toy

from labkit import identity
from labkit.build import build
from labkit.config import ENVIRONMENT_FIELDS, MAY_CHANGE
from labkit.errors import IdentityError
from labkit.recipe import resolve


def made(**settings: Any) -> dict[str, Any]:
    recipe = Toy()
    config = resolve(recipe, "toy", {"updates": 5, **settings})
    parts = build(recipe, config)
    return identity.identity(config, parts.state.model, recipe, parts.splits)


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return made()


def test_the_same_run_has_no_mismatch(plain: dict[str, Any]) -> None:
    assert identity.check(plain, made()) == []
    assert identity.check(plain, made(updates=99, save_every=3, keep=5, workers=2)) == []  # all of these may change


@pytest.mark.parametrize(
    ("settings", "field", "values"),
    [
        ({"seed": 3}, "config.seed", (0, 3)),
        ({"batch_size": 3}, "config.batch_size", (2, 3)),
        ({"microbatch_size": (1,)}, "config.microbatch_size", ([], [1])),
        ({"rate": 0.5}, "config.rate", (0.01, 0.5)),
        ({"order": "feistel"}, "config.order", ("randperm", "feistel")),
        ({"dropout": 0.5}, "config.options.dropout", (0.25, 0.5)),
        ({"n": 14}, "data.train.length", (12, 14)),
    ],
)
def test_a_difference_is_refused_with_field_and_both_values(
    plain: dict[str, Any], settings: dict[str, Any], field: str, values: tuple[Any, Any]
) -> None:
    with pytest.raises(IdentityError) as caught:
        identity.check(plain, made(**settings))
    text = str(caught.value)
    assert f"{field}: checkpoint {values[0]!r}, now {values[1]!r}" in text and "new run" in text


def test_another_architecture_cannot_be_overridden(plain: dict[str, Any]) -> None:
    other = made(norm=False)
    names = {m.field for m in identity.mismatches(plain, other)}
    assert "architecture.norm.running_mean" in names
    with pytest.raises(IdentityError, match="architecture"):
        identity.check(plain, other, identity.OVERRIDES)


def test_changed_data_passes_only_under_its_override(plain: dict[str, Any]) -> None:
    other = copy.deepcopy(plain)
    other["data"]["train"]["digest"] = "0" * 64
    with pytest.raises(IdentityError, match="--override data"):
        identity.check(plain, other)
    passed = identity.check(plain, other, ["data"])
    assert [m.field for m in passed] == ["data.train.digest"]


@pytest.mark.parametrize("name", ["torch", "device", "threads", "cpu_capability"])
def test_another_machine_passes_only_under_its_own_override(plain: dict[str, Any], name: str) -> None:
    other = copy.deepcopy(plain)
    other["machine"][name] = "another"
    with pytest.raises(IdentityError, match=f"--override {name}"):
        identity.check(plain, other)
    wrong = [override for override in identity.OVERRIDES if override != name]
    with pytest.raises(IdentityError):
        identity.check(plain, other, wrong)
    assert [m.field for m in identity.check(plain, other, [name])] == [f"machine.{name}"]


def test_the_remedy_offers_overrides_only_if_they_are_enough(plain: dict[str, Any]) -> None:
    other = copy.deepcopy(plain)
    other["machine"]["torch"] = "9.9"
    other["config"]["seed"] = 7
    with pytest.raises(IdentityError) as caught:
        identity.check(plain, other)
    assert "--override" not in str(caught.value)


def test_an_unknown_override_is_refused(plain: dict[str, Any]) -> None:
    with pytest.raises(IdentityError, match="'seed'"):
        identity.check(plain, plain, ["seed"])


def test_overrides_never_name_what_makes_it_another_run() -> None:
    assert set(identity.OVERRIDES) == {
        "data", "torch", "device", "threads", "cpu_capability", "eval_every", "patience", "min_improvement",
    }  # fmt: skip
    assert not set(identity.OVERRIDES) & MAY_CHANGE and ENVIRONMENT_FIELDS <= set(identity.OVERRIDES)


def test_a_split_without_a_digest_is_unverified(plain: dict[str, Any]) -> None:
    assert identity.is_unverified(plain)  # toy gives no digest of its validation split
    whole = copy.deepcopy(plain)
    whole["data"]["validation"]["digest"] = "1"
    assert not identity.is_unverified(whole)


def test_a_field_that_only_one_side_has_is_a_difference(plain: dict[str, Any]) -> None:
    older = copy.deepcopy(plain)
    del older["config"]["order"]
    assert [(m.saved, m.present) for m in identity.mismatches(older, plain)] == [("absent", "randperm")]
