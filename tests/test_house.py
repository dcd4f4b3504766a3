"""The house: who may import whom, what an import does, and that nothing moves in training but what is saved."""

from __future__ import annotations

import ast
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys import Toy

from labkit.engine import Engine, open_engine
from labkit.recipe import resolve
from labkit.state import RunState, leaf_bytes

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "labkit"

ORDER = (
    "errors", "device", "randomness", "weighting", "norms", "precision", "ema", "order", "files", "processes",
    "config", "schedule", "recipe", "recipes", "loading", "state", "identity", "checkpoint", "records", "interrupt",
    "evaluate", "loop", "build", "engine", "run", "proof", "trials", "plan", "export", "review", "lab", "commands",
    "__main__",
)  # fmt: skip
"""A page (or folder) may import only what stands before it. The one place where this is written down for the tests."""

ONLY_IN_LAB = {"matplotlib", "ipywidgets", "IPython"}


def pages() -> Iterator[tuple[str, Path]]:
    for file in sorted(PACKAGE.rglob("*.py")):
        first = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if first not in {"__init__", "_data"}:
            yield first, file


def imported(file: Path) -> set[str]:
    """Dotted names of everything that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import hides which page is meant"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_every_page_has_its_place_in_the_order() -> None:
    assert {first for first, _ in pages()} == set(ORDER)
    assert len(set(ORDER)) == len(ORDER)


def wrong_imports(files: Iterator[tuple[str, Path]] | list[tuple[str, Path]]) -> list[str]:
    """Imports of a page that does not stand above."""
    wrong = []
    for first, file in files:
        for name in sorted(imported(file)):
            parts = name.split(".")
            if parts[0] == "labkit" and len(parts) > 1 and parts[1] in ORDER and parts[1] != first:
                if ORDER.index(parts[1]) > ORDER.index(first):
                    wrong.append(f"{file.name}: {first} imports {parts[1]}, which stands below it")
    return wrong


def test_a_page_imports_only_pages_above_it() -> None:
    assert wrong_imports(pages()) == []


def test_a_wrong_import_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "config.py"
    page.write_text("def late():\n    from labkit import run\n")
    assert wrong_imports([("config", page)]) == ["config.py: config imports run, which stands below it"]


def test_only_the_lab_imports_plotting_widgets_or_ipython() -> None:
    wrong = [
        str(file)
        for first, file in pages()
        if first != "lab" and {name.split(".")[0] for name in imported(file)} & ONLY_IN_LAB
    ]
    assert wrong == []


def test_importing_labkit_does_no_work() -> None:
    code = (
        "import sys, threading; before = threading.active_count(); import labkit; "
        "heavy = {'torch', 'numpy', 'matplotlib', 'IPython', 'ipywidgets'} & set(sys.modules); "
        "assert not heavy, heavy; assert threading.active_count() == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=120)


# --- nothing moves but RunState --------------------------------------------------------------------------------------

MAY_MOVE = {
    "Engine._streams",  # the run's random streams while the caller's are in place: saved as part of RunState
    "Engine._feed._cursor",  # where the next fetch begins: equal to RunState.cursor at a boundary
    "Engine.parts.order._kept",  # one epoch's order, computed anew from (seed, epoch)
    "Engine.stages._open",  # which stage an error would be blamed on
    "Engine.stages.enter",  # "first forward" is over
    "Engine.loop._monitor._line",  # the measurement that this attempt's record carries
    "Engine.loop._monitor._snapshot",  # the parameters before this attempt, where they are measured
}
"""What Engine and Loop may change beside RunState, and why it need not be saved."""


PLAIN = (str, int, float, bool, bytes, type(None))


def remembered(
    thing: Any, name: str, stop: tuple[type, ...], seen: set[int], depth: int = 5
) -> Iterator[tuple[str, str]]:
    """(path, digest) of every value that hangs on an object, down to plain values and tensors."""
    if isinstance(thing, PLAIN):
        yield name, repr(thing)
        return
    if isinstance(thing, stop) or id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        yield name, hashlib.blake2b(leaf_bytes(thing)).hexdigest()
    elif isinstance(thing, np.ndarray):
        yield name, hashlib.blake2b(thing.tobytes()).hexdigest()
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from remembered(value, f"{name}[{key!r}]", stop, seen, depth)
        yield f"{name} keys", repr(sorted(map(repr, thing)))
    elif isinstance(thing, list | tuple | set) or type(thing).__name__ == "deque":
        yield f"{name} length", str(len(thing))
        for place, value in enumerate(thing):
            yield from remembered(value, f"{name}[{place}]", stop, seen, depth)
    elif callable(thing) and not hasattr(thing, "__dict__"):
        yield name, getattr(thing, "__qualname__", repr(type(thing)))
    elif depth and hasattr(thing, "__dict__"):
        for key, value in vars(thing).items():
            yield from remembered(value, f"{name}.{key}", stop, seen, depth - 1)
        if callable(thing):
            yield name, getattr(thing, "__qualname__", type(thing).__qualname__)
    elif callable(thing):
        yield name, getattr(thing, "__qualname__", repr(type(thing)))


def moved(engine: Engine, updates: int) -> set[str]:
    """Values outside RunState, the recipe and the data that differ after some more updates."""

    def look() -> dict[str, str]:
        saved = {id(getattr(engine.state, name)) for name in RunState.__dataclass_fields__}
        return dict(remembered(engine, "Engine", (RunState, Toy), saved | {id(engine.parts.splits)}))

    before = look()
    engine.run(updates)
    after = look()
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def unexpected(paths: set[str]) -> set[str]:
    return {path for path in paths if not any(path.split(" ")[0].startswith(known) for known in MAY_MOVE)}


SETTINGS = {
    "eval_every": 1, "ema_decay": 0.9, "eval_weights": "ema", "norm_every": 1, "monitor_every": 1, "max_norm": 0.1,
    "schedule": "cosine", "horizon": 30, "patience": 50, "microbatch_size": (1,), "jitter": True,
    "precision": "fp16", "initial_scale": 2.0**24, "growth_interval": 2,
}  # fmt: skip


def test_loop_and_engine_change_nothing_but_the_run_state() -> None:
    with open_engine(Toy(), resolve(Toy(), "toy", {"updates": 20, **SETTINGS})) as engine:
        engine.run(2)
        assert unexpected(moved(engine, 9)) == set()


def test_a_counter_beside_the_run_state_would_be_found() -> None:
    with open_engine(Toy(), resolve(Toy(), "toy", {"updates": 20})) as engine:
        real = engine.loop.update

        def counting() -> Any:
            engine.loop.tries = getattr(engine.loop, "tries", 0) + 1  # type: ignore[attr-defined]
            return real()

        engine.loop.update = counting  # type: ignore[method-assign]
        engine.run(2)
        assert unexpected(moved(engine, 5)) == {"Engine.loop.tries"}


@pytest.mark.parametrize("part", ["counters", "cursor", "best", "ema", "optimizer", "schedule", "precision", "model"])
def test_run_state_holds_every_part(part: str) -> None:
    assert part in RunState.__dataclass_fields__
