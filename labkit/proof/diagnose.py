"""Why a recipe does not resume exactly: compare what its objects remember, transplant suspects, run again. Lesson 15.

Not a guess: a piece is named only after a resume into which its value was carried over came out exact.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from labkit.build import Parts
from labkit.errors import ProofError
from labkit.proof.child import Job
from labkit.proof.compare import Difference, first_difference
from labkit.proof.reachable import Leaf, leaves, roots

if TYPE_CHECKING:
    from labkit.proof.prove import Bench, Proof

MOST_SUSPECTS = 12

UNSEEN = (
    "state inside compiled extensions", "files and devices that the code reads while it trains", "time and the network",
    "variables local to a running function", "anything that lives in worker processes",
)  # fmt: skip


def write_reachable(parts: Parts, attempt: int, target: Path) -> None:
    """Write every remembered value of this process at this boundary."""
    torch.save([_stored(leaf) for leaf in leaves(parts)], target.with_name(f"{target.stem}-{attempt}.pt"))


def _stored(leaf: Leaf) -> dict[str, Any]:
    return {
        "path": leaf.path, "root": leaf.root, "steps": [list(step) for step in leaf.steps], "kind": leaf.kind,
        "digest": leaf.digest, "value": leaf.value,
    }  # fmt: skip


def _read(target: Path, attempt: int) -> dict[str, dict[str, Any]]:
    stored = torch.load(target.with_name(f"{target.stem}-{attempt}.pt"), weights_only=True)
    return {leaf["path"]: leaf for leaf in stored}


def transplant(parts: Parts, source: Path) -> None:
    """Put stored values into the objects of this process. Raises ProofError for a path that is not here."""
    found = roots(parts)
    for leaf in torch.load(source, weights_only=True):
        holder: Any = found[leaf["root"]]
        *way, last = [tuple(step) for step in leaf["steps"]]
        for step in way:
            holder = _go(holder, step)
        _put(holder, last, leaf["kind"], leaf["value"])


def _go(holder: Any, step: tuple[str, Any]) -> Any:
    kind, name = step
    if kind == "item":
        return holder[name]
    if kind == "cell":
        return holder.__closure__[name].cell_contents
    if kind == "global":
        return vars(sys.modules[name[0]])[name[1]]
    if name.startswith("__defaults__"):
        return holder.__defaults__[int(name[13:-1])]
    return getattr(holder, name)


def _put(holder: Any, step: tuple[str, Any], kind: str, value: Any) -> None:
    present = _go(holder, step)
    if kind == "generator":
        if isinstance(present, torch.Generator):
            present.set_state(value)
        else:
            from labkit.randomness import capture, restore

            restore({**capture(), "generators": {"it": value}}, {"it": present})
    elif kind in {"tensor", "array"}:
        present[...] = value if kind == "tensor" else value.numpy()
    elif isinstance(present, list):
        present[:] = value
    elif isinstance(present, dict | set):
        present.clear()
        present.update(value)
    elif hasattr(present, "extend") and hasattr(present, "clear"):
        present.clear()
        present.extend(value)
    else:
        _set(holder, step, value)


def _set(holder: Any, step: tuple[str, Any], value: Any) -> None:
    kind, name = step
    if kind == "attr":
        object.__setattr__(holder, name, value)
    elif kind == "item":
        holder[name] = value
    elif kind == "cell":
        holder.__closure__[name].cell_contents = value
    else:
        vars(sys.modules[name[0]])[name[1]] = value


def diagnose(bench: Bench, proof: Proof) -> tuple[list[str], tuple[str, ...]]:
    """(findings, what this cannot see) for a proof that is not exact."""
    bench.progress("looking for what is missing")
    again = bench.run(Job("start", bench.path("again"), bench.path("again.jsonl"), bench.recipe, bench.settings))
    unrepeatable = first_difference(bench.straight, again)
    if unrepeatable is not None:
        return [_unrepeatable(unrepeatable)], UNSEEN
    failing = next((row for row in proof.rows if not row.exact), None)
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
    look = Path(bench.path("look"))
    straight, restored = look.with_name("look-straight.jsonl"), look.with_name("look-restored.jsonl")
    bench.run(Job(
        "start", bench.path("look-straight"), bench.path("look-s.jsonl"), bench.recipe, bench.settings,
        until=stop, look=[stop], look_log=str(straight),
    ))  # fmt: skip
    copy = bench.path("look-restored")
    bench.copy(bench.path(f"stop-{stop:06d}"), copy)
    bench.run(Job("continue", copy, bench.path("look-r.jsonl"), until=stop, look=[stop], look_log=str(restored)))
    before, after = _read(straight, stop), _read(restored, stop)
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
    number = sum(1 for _ in bench.place.glob("transplant-*.pt"))
    values = Path(bench.path(f"transplant-{number}.pt"))
    torch.save(chosen, values)
    copy = bench.path(f"transplant-{number}")
    bench.copy(bench.path(f"stop-{stop:06d}"), copy)
    try:
        lines = bench.run(Job("continue", copy, bench.path(f"transplant-{number}.jsonl"), transplant=str(values)))
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
