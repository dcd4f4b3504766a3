"""Why a recipe does not resume exactly: compare what its objects remember, transplant suspects, run again. Lesson 15.

Not a guess: a piece is named only after a resume into which its value was carried over came out exact.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from labkit.errors import ProofError
from labkit.proof.bench import Bench, Row
from labkit.proof.compare import Difference, first_difference
from labkit.proof.transplant import read_reachable

MOST_SUSPECTS = 12

UNSEEN = (
    "state inside compiled extensions", "files and devices that the code reads while it trains", "time and the network",
    "variables local to a running function", "anything that lives in worker processes",
)  # fmt: skip


def diagnose(bench: Bench, failing: Row | None) -> tuple[list[str], tuple[str, ...]]:
    """(findings, what this cannot see). failing: a stop that did not continue exactly; None: only saving differed."""
    bench.progress("looking for what is missing")
    unrepeatable = first_difference(bench.straight, bench.run(bench.start("again")))
    if unrepeatable is not None:
        return [_unrepeatable(unrepeatable)], UNSEEN
    if failing is None:
        return ["publishing a checkpoint changes the run: look for a state_dict() with a side effect"], UNSEEN
    stop = failing.stops[0]
    suspects = _suspects(bench, stop)
    if not suspects:
        return ["nothing that the recipe's objects remember differs after the resume"], UNSEEN
    guilty = _confirm(bench, stop, suspects)
    if not guilty:
        names = ", ".join(leaf["path"] for leaf in suspects[:5])
        return [f"these differ after the resume, but carrying them over is not enough: {names}"], UNSEEN
    return [_finding(leaf) for leaf in guilty], UNSEEN


def _unrepeatable(difference: Difference) -> str:
    return (
        f"the run does not even repeat itself: two straight runs differ ({difference}); "
        "look for an unseeded generator, set order (PYTHONHASHSEED), time, or threads"
    )


def _suspects(bench: Bench, stop: int) -> list[dict[str, Any]]:
    """Values that the straight process has at the boundary and the restored one does not."""
    straight, restored = bench.path("seen-straight"), bench.path("seen-restored")
    bench.run(bench.start("look-straight", until=stop, look=[stop], look_log=straight))
    bench.continue_copy(stop, "look-restored", until=stop, look=[stop], look_log=restored)
    before, after = read_reachable(Path(straight), stop), read_reachable(Path(restored), stop)
    differing = [leaf for path, leaf in before.items() if path not in after or after[path]["digest"] != leaf["digest"]]
    return differing[:MOST_SUSPECTS]


def _confirm(bench: Bench, stop: int, suspects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The smallest set of suspects found whose values, carried over, make the resume exact."""
    for leaf in suspects:
        if _exact_with(bench, stop, [leaf]):
            return [leaf]
    if len(suspects) == 1 or not _exact_with(bench, stop, suspects):
        return []
    needed = list(suspects)
    for leaf in suspects:
        fewer = [other for other in needed if other is not leaf]
        if fewer and _exact_with(bench, stop, fewer):
            needed = fewer
    return needed


def _exact_with(bench: Bench, stop: int, chosen: list[dict[str, Any]]) -> bool:
    name = f"transplant-{sum(1 for _ in bench.place.glob('transplant-*.pt'))}"
    values = bench.path(f"{name}.pt")
    torch.save(chosen, values)
    try:
        lines = bench.continue_copy(stop, name, transplant=values)
    except ProofError:  # a value that cannot be put there explains nothing
        return False
    return bench.difference_after(stop, lines) is None


def _finding(leaf: dict[str, Any]) -> str:
    return f"missing: {leaf['path']} (confirmed: with its value carried over the resume is exact). {_remedy(leaf)}"


def _remedy(leaf: dict[str, Any]) -> str:
    if leaf["kind"] == "generator":
        if "data" in leaf["root"] or leaf["root"] == "transform":
            return "Draw from the rng of transform(example, rng), which is keyed by (seed, epoch, example)."
        return "Return it from Recipe.generators(), and it is saved and restored."
    if leaf["root"].startswith("model"):
        return "Make it a buffer (self.register_buffer), so that it is part of the model's state."
    if "data" in leaf["root"] or leaf["root"] == "transform":
        return "A data set must give the same example for the same index: compute it from transform(example, rng)."
    return "Keep it in an object with state_dict() and load_state_dict(), and return that from Recipe.stateful()."
