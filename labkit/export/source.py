"""A run opened for export: its recipe built again with a checkpoint's weights, and its provenance. Lesson 09."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from labkit import randomness
from labkit.build import Parts, build
from labkit.checkpoint import Found
from labkit.config import RunConfig
from labkit.errors import CheckpointError, ExportError
from labkit.files import file_sha256
from labkit.recipe import Recipe
from labkit.recipes import again
from labkit.run.folder import RunFolder
from labkit.state import check_model, load_model

CODE: Final = "recipe.py"


@dataclass(frozen=True)
class Source:
    """A run opened for export: its recipe built again, with the weights of one checkpoint in the model."""

    place: RunFolder
    config: RunConfig
    parts: Parts
    found: Found

    def about(self) -> dict[str, Any]:
        """Recipe, config, description, provenance and training duration, as plain values."""
        facts = self.found.manifest["facts"]
        training = {"seconds": facts["seconds_used"], "epochs": None, **facts["counters"]}
        training["epochs"] = facts["counters"]["examples"] / max(len(self.parts.splits.train), 1)
        return {
            "recipe": {"reference": self.config.recipe, "code": _code_facts(self.config.recipe)},
            "config": facts["config"],
            "description": self.parts.recipe.describe_export(self.config),
            "training": {name: training[name] for name in ("committed", "examples", "tokens", "epochs", "seconds")},
            "evaluation": facts["evaluation"],
            "provenance": {
                "run": self.place.name,
                "run_id": facts["run_id"],
                "checkpoint": self.found.path.name,
                "checkpoint_sha256": self.found.manifest["files"],
                "data": facts["identity"]["data"],
                "machine": facts["identity"]["machine"],
                "exact": facts["exact"],
                **_recorded(self.place),
            },
        }

    def code(self) -> dict[str, bytes]:
        """The recipe's own file, when it is a file of the user's."""
        path = recipe_file(self.config.recipe)
        return {CODE: path.read_bytes()} if path is not None and path.is_file() else {}


def open_run(run: Path | str, checkpoint: str | int, recipe: Recipe | None) -> Source:
    """Build a run's recipe on the CPU and load a checkpoint's model (and average) into it. No random stream moves."""
    place = RunFolder(Path(run))
    meta, config = place.read_meta(), place.read_config()
    own = again(config.recipe, recipe)
    config = config.changed(device="cpu")
    found = _checkpoint(place, config, meta["run_id"], checkpoint)
    with randomness.callers_kept():
        parts = build(own, config)
        check_model(parts.state.model, found.payload["model"])
        load_model(parts.state.model, found.payload["model"])
        if parts.state.ema is not None:
            parts.state.ema.load_state_dict(found.payload["ema"])
    return Source(place, config, parts, found)


def _checkpoint(place: RunFolder, config: RunConfig, run_id: str, which: str | int) -> Found:
    store = place.store(config, run_id)
    if isinstance(which, int):
        return store.load(which)
    if which not in ("best", "newest"):
        raise ExportError(f"checkpoint={which!r}", "best, newest, or the number of an update", "choose one of them")
    newest = store.newest()
    best = newest.payload["best"]["update"]
    if newest.manifest["facts"]["dry_run"]:
        raise CheckpointError(f"{newest.path.name} is the checkpoint of a dry run", "one of a real run", "start one")
    return newest if which == "newest" or best in (None, newest.update) else store.load(best)


def _recorded(place: RunFolder) -> dict[str, Any]:
    """Code revision and packages of the run. Local changes are told by their digest: the patch stays with the run."""
    try:
        env = json.loads(place.environment.read_bytes())
        git = env["git"]
        patch = git.get("patch") if isinstance(git, dict) else None
        commit = git.get("commit") if isinstance(git, dict) else None
        changes = hashlib.sha256(patch.encode(errors="surrogateescape")).hexdigest() if patch else None
        return {"code": {"commit": commit, "changes_sha256": changes}, "packages": env["packages"]}
    except (OSError, ValueError, KeyError, AttributeError) as error:
        return {"code": None, "packages": None, "unreadable": type(error).__name__}


def recipe_file(reference: str) -> Path | None:
    """The file of a "path/to/file.py:attribute" reference."""
    path, colon, _ = reference.rpartition(":")
    return Path(path).expanduser() if colon and path.endswith(".py") else None


def _code_facts(reference: str) -> dict[str, Any] | None:
    path = recipe_file(reference)
    if path is None or not path.is_file():
        return None
    return {"file": CODE, "attribute": reference.rpartition(":")[2], "sha256": file_sha256(path)}
