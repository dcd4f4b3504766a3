"""The inference artefact: made of a run, rebuilt and used in a fresh process. Lesson 09."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from labkit import randomness
from labkit.config import RunConfig, from_dict
from labkit.device import resolve as resolve_device
from labkit.errors import ExportError
from labkit.evaluate import carrying_average, leaving_no_trace
from labkit.export.artefact import Artefact, publish, read
from labkit.export.fitting import load_weights
from labkit.export.source import CODE, open_run, recipe_file
from labkit.export.trial import equal_on, real_batches
from labkit.export.weights import Contents, contents, digest
from labkit.files import DISK, Files, file_sha256
from labkit.recipe import Recipe
from labkit.recipes import again, find
from labkit.state import architecture

COMPLETE: Final = ("inference", "merged")


@dataclass(frozen=True)
class Inference:
    """A model ready for use, in eval mode, with what its artefact says."""

    model: nn.Module
    recipe: Recipe
    config: RunConfig
    artefact: Artefact
    remarks: tuple[str, ...]

    @property
    def description(self) -> Mapping[str, Any]:
        """Labels, vocabulary, preprocessing, inputs and decoding settings, as the recipe described them."""
        found: Mapping[str, Any] = self.artefact.about["description"]
        return found

    def predict(self, inputs: Any = None, **settings: Any) -> Sequence[Mapping[str, Any]]:
        """What the recipe's predict() makes of the inputs: one mapping of plain values for each.

        settings replace the stored decoding settings. Modes, buffers and global random streams stay as they were.
        Raises ExportError for an unknown setting and for a recipe without predict().
        """
        known = dict(self.description.get("decoding", {}))
        unknown = sorted(set(settings) - set(known))
        if unknown:
            raise ExportError(
                f"there is no decoding setting {unknown[0]!r}", ", ".join(known) or "none", "leave it out"
            )
        if "labels" in self.description:
            known["labels"] = self.description["labels"]
        with leaving_no_trace(self.model), torch.no_grad():
            return self.recipe.predict(self.model, inputs, **{**known, **settings})


# --- making one -----------------------------------------------------------------------------------------------------


def export_inference(
    run: Path | str,
    target: Path | str,
    *,
    checkpoint: str | int = "best",
    weights: str | None = None,
    recipe: Recipe | None = None,
    files: Files = DISK,
) -> Artefact:
    """Make an inference artefact of a run.

    checkpoint: "best" (the newest when none was found best), "newest" or an update; weights: "raw" or "ema", by default
    those that the run evaluated. The artefact is rebuilt from its own files, and must give the same bits on real
    examples, before it gets its name. Raises ExportError, CheckpointError, StorageError and relatives.
    """
    source = open_run(run, checkpoint, recipe)
    chosen = weights or source.config.eval_weights
    if chosen not in ("raw", "ema") or (chosen == "ema" and source.parts.state.ema is None):
        raise ExportError(f"weights={chosen!r}", "raw, or ema for a run with ema_decay", "choose the other")
    with randomness.callers_kept():
        state, splits = source.parts.state, source.parts.splits
        config = source.config.changed(eval_weights=chosen)
        with carrying_average(state, source.parts.recipe, config, splits.train):
            stored = contents(state.model)
            about = {**source.about(), "weights": chosen, **model_facts(state.model, stored)}
            batches = real_batches(splits, source.parts.recipe, config.device)

            def check(folder: Path) -> None:
                again = load_inference(folder, recipe=source.parts.recipe)
                equal_on(batches, source.parts.recipe, state.model, again.model, "the rebuilt model")

            return publish(target, "inference", about, stored.tensors, source.code(), check, files)


def model_facts(model: nn.Module, stored: Contents) -> dict[str, Any]:
    """What artefact.json says about a model's tensors."""
    return {
        "architecture": architecture(model),
        "parameters": sum(p.numel() for p in model.parameters()),
        "ties": stored.ties,
        "hidden_buffers": stored.hidden,
        "digest": digest(model),
    }


# --- using one ------------------------------------------------------------------------------------------------------


def load_inference(
    folder: Path | str, *, recipe: Recipe | None = None, run_code: bool = False, device: str = "cpu"
) -> Inference:
    """Rebuild the model of an inference or merged artefact, in eval mode on the device.

    A recipe that came from a file of yours is found there again if that file is unchanged; run_code=True runs the copy
    inside the artefact instead: look at it first (`labkit review FOLDER`). Raises ExportError, RecipeError.
    """
    artefact = read(folder, COMPLETE)
    about = artefact.about
    try:
        config = from_dict(about["config"]).changed(device=device)
        found = recipe or _find(artefact, run_code)
        with randomness.callers_kept():
            randomness.seed_all("build", config.seed)
            model = found.rebuild(config, about["description"])
        model = model.to(resolve_device(device))
        remarks = load_weights(model, artefact.tensors(), about["ties"])
        seen = digest(model)
    except (KeyError, TypeError, AttributeError) as error:
        raise ExportError(
            f"{folder} is described incompletely ({type(error).__name__}: {error})", "what was exported", "export again"
        ) from error
    if seen != about["digest"]:
        raise ExportError(
            f"the rebuilt model has digest {seen}",
            f"{about['digest']}",
            "use the recipe that the artefact was made with",
        )
    return Inference(model.eval(), found, config, artefact, tuple(remarks))


def _find(artefact: Artefact, run_code: bool) -> Recipe:
    reference, code = artefact.about["recipe"]["reference"], artefact.about["recipe"]["code"]
    if code is None:
        return again(reference)
    if run_code:
        return find(f"{artefact.path / CODE}:{code['attribute']}")
    path = recipe_file(reference)
    if path is not None and path.is_file() and file_sha256(path) == code["sha256"]:
        return find(reference)
    raise ExportError(
        f"the recipe's file {reference.rpartition(':')[0]} is not here, or has changed",
        "the file that the run was made with",
        f"pass recipe=, or read {CODE} in the artefact (`labkit review`) and then run it: run_code=True, --run-code",
    )
