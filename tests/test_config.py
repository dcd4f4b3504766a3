"""Settings: typed, refused early with one clear error, and their fingerprint knows what decides a trajectory."""

from __future__ import annotations

import math
import pickle
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from toys import Toy

from labkit.config import (
    ENVIRONMENT_FIELDS,
    MAY_CHANGE,
    RunConfig,
    field_names,
    from_dict,
    parse,
)
from labkit.errors import ConfigError, RecipeError
from labkit.recipe import Option, resolve

FREE = {
    "updates", "epochs", "examples", "tokens", "seconds", "save", "save_every", "save_seconds", "save_epoch_end",
    "keep", "milestone_every", "workers", "start_method", "persistent_workers", "prefetch", "on_nonfinite",
    "max_skips", "max_scaler_skips", "after_horizon", "signals_every", "monitor_every", "profile", "tensorboard",
    "histograms_every",
}  # fmt: skip


def test_the_fields_that_may_change_are_exactly_these() -> None:
    """Written out on purpose: whoever adds a field decides here whether it can bend a trajectory."""
    assert MAY_CHANGE == FREE
    assert ENVIRONMENT_FIELDS == {"device", "threads"}
    assert MAY_CHANGE | ENVIRONMENT_FIELDS <= set(field_names())


def test_identity_is_everything_else() -> None:
    known = {item.name for item in fields(RunConfig)}
    assert set(RunConfig(recipe="digits").identity()) == known - MAY_CHANGE - ENVIRONMENT_FIELDS


OTHER_VALUES: dict[str, Any] = {
    "seed": 1, "precision": "bf16", "initial_scale": 2.0, "growth_interval": 3, "tf32": True, "matmul": "high",
    "deterministic": False, "cudnn_benchmark": True, "batch_size": 65, "microbatch_size": (3,), "order": "feistel",
    "shield_global": True, "rate": 0.5, "weight_decay": 0.5, "max_norm": 1.0, "schedule": "step", "warmup": 1,
    "horizon": 9, "floor": 0.5, "schedule_factor": 0.5, "schedule_interval": 2, "schedule_clock": "epochs",
    "ema_decay": 0.5, "ema_warmup": True, "ema_buffers": "average", "eval_every": 1, "eval_batch_size": 3,
    "metric": "other", "mode": "max", "min_improvement": 0.5, "samples_every": 1, "norm_every": 1,
    "eval_weights": "ema", "patience": 2,
}  # fmt: skip
NEEDS: dict[str, dict[str, Any]] = {"eval_weights": {"ema_decay": 0.5}, "patience": {"eval_every": 1}}


@pytest.mark.parametrize("name", sorted(set(RunConfig(recipe="x").identity()) - {"recipe", "options"}))
def test_every_field_of_the_identity_changes_the_fingerprint(name: str) -> None:
    plain = RunConfig(recipe="digits", **NEEDS.get(name, {}))
    other = RunConfig(recipe="digits", **{**NEEDS.get(name, {}), name: OTHER_VALUES[name]})
    assert plain.fingerprint != other.fingerprint


@pytest.mark.parametrize("name", sorted(FREE - {"save", "start_method", "on_nonfinite", "after_horizon"}))
def test_a_field_that_may_change_does_not_change_the_fingerprint(name: str) -> None:
    flags = {"persistent_workers": False, "save_epoch_end": True, "profile": True, "tensorboard": True}
    value: Any = flags.get(name, 7)
    assert RunConfig(recipe="d", **{name: value}).fingerprint == RunConfig(recipe="d").fingerprint


def test_the_fingerprint_is_the_same_after_json_and_pickle() -> None:
    config = RunConfig(recipe="digits", options={"b": 1, "a": 2.0}, microbatch_size=(5, 3), rate=1, updates=3)
    assert from_dict(config.to_dict()) == config and pickle.loads(pickle.dumps(config)) == config
    assert from_dict(config.to_dict()).fingerprint == config.fingerprint
    assert type(config.rate) is float


def test_a_config_cannot_be_changed_in_place() -> None:
    config = RunConfig(recipe="digits", options={"a": 1})
    with pytest.raises(FrozenInstanceError):
        config.rate = 3.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.options["a"] = 2  # type: ignore[index]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size=0"),
    ({"batch_size": -4}, "batch_size=-4"),
    ({"batch_size": 2.5}, "float"),
    ({"batch_size": True}, "bool"),
    ({"batch_size": "8"}, "str"),
    ({"microbatch_size": 0}, "microbatch_size"),
    ({"microbatch_size": (4, -1)}, "-1"),
    ({"microbatch_size": (4, 2.0)}, "whole number"),
    ({"microbatch_size": (40, 40)}, "adds up to 80"),
    ({"workers": -1}, "workers"),
    ({"prefetch": 0}, "prefetch"),
    ({"threads": 0}, "threads"),
    ({"keep": 1}, "crash"),
    ({"keep": 0}, "keep"),
    ({"rate": -0.1}, "rate"),
    ({"rate": math.nan}, "rate=nan"),
    ({"rate": math.inf}, "rate=inf"),
    ({"max_norm": 0.0}, "max_norm"),
    ({"max_norm": math.nan}, "max_norm"),
    ({"initial_scale": 0.0}, "initial_scale"),
    ({"initial_scale": math.inf}, "initial_scale"),
    ({"ema_decay": 1.0}, "ema_decay"),
    ({"ema_decay": -0.1}, "ema_decay"),
    ({"updates": -1}, "updates"),
    ({"seconds": 0.0}, "seconds"),
    ({"order": "shuffle"}, "randperm, feistel"),
    ({"schedule": "cosin"}, "one of constant"),
    ({"schedule": "cosine"}, "without a horizon"),
    ({"schedule": "linear", "horizon": 5, "warmup": 5}, "warm-up shorter"),
    ({"schedule": "cosine", "horizon": 10, "updates": 11}, "ends after 10"),
    ({"schedule": "linear", "schedule_clock": "epochs", "horizon": 2, "epochs": 3}, "ends after 2 epochs"),
    ({"schedule": "plateau"}, "validation clock"),
    ({"schedule": "plateau", "schedule_clock": "validation", "eval_every": 1, "warmup": 3}, "warm-up"),
    ({"schedule_clock": "validation"}, "eval_every"),
    ({"schedule_interval": 0}, "schedule_interval"),
    ({"eval_weights": "ema"}, "ema_decay"),
    ({"patience": 3}, "eval_every"),
    ({"patience": 0, "eval_every": 1}, "patience"),
    ({"metric": "accuracy", "eval_every": 1}, "direction"),
    ({"mode": "maximum"}, "min, max"),
    ({"min_improvement": -1.0}, "min_improvement"),
    ({"milestone_every": 0}, "milestone_every"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "said"), REFUSED, ids=[str(settings) for settings, _ in REFUSED])
def test_a_bad_value_is_refused_by_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        RunConfig(recipe="digits", **settings)
    assert caught.value.expected


def test_a_batch_size_that_does_not_divide_is_fine() -> None:
    RunConfig(recipe="digits", batch_size=7, microbatch_size=3)


def test_the_direction_of_the_loss_goes_without_saying_that_of_others_does_not() -> None:
    assert RunConfig(recipe="d").mode == "min"
    assert RunConfig(recipe="d", metric="accuracy", mode="max", eval_every=1).mode == "max"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rate", "1e-3", 0.001), ("batch_size", "16", 16), ("microbatch_size", "40,20,4", (40, 20, 4)),
        ("microbatch_size", "16", (16,)), ("max_norm", "none", None), ("max_norm", "2", 2.0), ("updates", "NONE", None),
        ("deterministic", "off", False), ("ema_warmup", "Yes", True), ("order", "feistel", "feistel"),
        ("mode", "max", "max"), ("mode", "none", None),
    ],
)  # fmt: skip
def test_texts_of_a_command_line_are_read_by_type(name: str, text: str, value: Any) -> None:
    assert parse(name, text) == value and type(parse(name, text)) is type(value)


WRONG = [("rate", "fast"), ("batch_size", "1.5"), ("deterministic", "maybe"), ("workers", "")]


@pytest.mark.parametrize(("name", "text"), WRONG)
def test_a_text_of_the_wrong_kind_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=name):
        parse(name, text)


MISSPELLED = [("bacth_size", "batch_size"), ("learning_rate", "rate"), ("dropuot", "dropout"), ("max_steps", "updates")]


@pytest.mark.parametrize(("wrong", "near"), MISSPELLED)
def test_an_unknown_name_says_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"{wrong}.*{near}"):
        resolve(Toy(), "toy", {wrong: "1"})


def test_an_unknown_stored_field_is_refused() -> None:
    with pytest.raises(ConfigError, match="flavour"):
        from_dict({**RunConfig(recipe="d").to_dict(), "flavour": 1})


def test_what_the_user_sets_wins_over_the_recipe_and_that_over_the_default() -> None:
    assert resolve(Toy(), "toy", {}).batch_size == 2
    assert resolve(Toy(), "toy", {"batch_size": "5"}).batch_size == 5
    assert resolve(Toy(), "toy", {"dropout": "0.5"}).options["dropout"] == 0.5


def test_an_option_with_the_name_of_a_field_is_refused() -> None:
    class Clashing(Toy):
        options = {"rate": Option(1.0)}

    with pytest.raises(RecipeError, match="rate"):
        resolve(Clashing(), "toy", {})


@pytest.mark.parametrize("value", ["many", "1.5", True])
def test_an_option_of_the_wrong_type_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="n="):
        resolve(Toy(), "toy", {"n": value})


def test_settings_make_the_same_config_again() -> None:
    recipe = Toy()
    config = resolve(recipe, "toy", {"updates": 3, "microbatch_size": (1, 1), "momentum": 0.5})
    assert resolve(recipe, "toy", config.settings()) == config
