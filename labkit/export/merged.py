"""The merged artefact: base and adapter made one model, published only if it gives the same bits as both. Lesson 09."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.export.adapter import load_adapter, merge
from labkit.export.artefact import Artefact, publish, read
from labkit.export.inference import COMPLETE, load_inference, model_facts
from labkit.export.source import CODE
from labkit.export.trial import equal_on, real_batches
from labkit.export.weights import contents
from labkit.files import DISK, Files
from labkit.recipe import Recipe

KEPT = ("recipe", "config", "description", "weights")


def export_merged(
    base: Path | str,
    adapter: Path | str,
    target: Path | str,
    *,
    batches: Sequence[Any] | None = None,
    recipe: Recipe | None = None,
    run_code: bool = False,
    files: Files = DISK,
) -> Artefact:
    """Merge an adapter into its exact base, and try the result against both on real inputs before it is published.

    batches: collated batches to try it on; by default the first examples of the recipe's validation split.
    Raises ExportError when the base is another one or one bit of an output differs.
    """
    below, change = read(base, COMPLETE), read(adapter, ("adapter",))
    pair = load_adapter(adapter, base, recipe=recipe, run_code=run_code)
    single = load_adapter(adapter, base, recipe=recipe, run_code=run_code)
    layers = merge(single.model)
    stored = contents(single.model)
    inputs = list(batches) if batches is not None else real_batches(pair.recipe.splits(pair.config), pair.recipe, "cpu")
    about = {
        **{name: below.about[name] for name in KEPT},
        **model_facts(single.model, stored),
        "layers": layers,
        "training": change.about["training"],
        "evaluation": change.about["evaluation"],
        "provenance": {
            "base": {"name": below.path.name, "digest": below.about["digest"], **below.about["provenance"]},
            "adapter": {"name": change.path.name, **change.about["provenance"]},
        },
    }

    def check(folder: Path) -> None:
        again = load_inference(folder, recipe=pair.recipe)
        equal_on(inputs, pair.recipe, pair.model, again.model, "the merged model")

    code = {CODE: (below.path / CODE).read_bytes()} if CODE in below.about["files"] else {}
    return publish(target, "merged", about, stored.tensors, code, check, files)
