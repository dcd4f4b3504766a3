"""What durable, verified checkpoints cost beside the plain ways, on one 400 MB state, side by side.

    python tests/benchmarks/bench_checkpoint.py [--json] [--megabytes 400] [--rounds 7]

Each round does every way once, so that a slow minute of the machine hits all of them; a ratio is the median over the
rounds of (this way / its yardstick in the same round).
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _table import Row, parser, report

from labkit.checkpoint import BackgroundSaver, CheckpointStore

LIMITS = {"durable_save": 2.5, "background_stall": 1.3, "verified_load": 2.5}
AIMS = {"durable_save": 1.6, "background_stall": 1.05}


def state_of(megabytes: int) -> dict[str, dict[str, torch.Tensor]]:
    """Weights and two optimizer moments in 30 tensors of one size."""
    each = megabytes * 1_000_000 // 30 // 4
    parts = ("model", "exp_avg", "exp_avg_sq")
    return {part: {f"layer{number}": torch.randn(each) for number in range(10)} for part in parts}


def plain_copy(state: dict[str, dict[str, torch.Tensor]]) -> Any:
    return {part: {name: tensor.clone() for name, tensor in tensors.items()} for part, tensors in state.items()}


def ways(state: Any, folder: Path) -> dict[str, Callable[[], None]]:
    """Every way to measure, by name. Each removes what it wrote outside of its time."""
    store = CheckpointStore(folder / "checkpoints")
    saver = BackgroundSaver(store)
    counter = iter(range(1_000_000))

    def save_unsynced() -> None:
        with open(folder / "unsynced.pt", "wb") as handle:
            torch.save(state, handle)

    def save_synced() -> None:
        with open(folder / "synced.pt", "wb") as handle:
            torch.save(state, handle)
            handle.flush()
            os.fsync(handle.fileno())

    def distributed() -> None:
        import torch.distributed.checkpoint as dcp

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that there is one process, which is meant
            dcp.save(state, checkpoint_id=str(folder / "dcp"))

    return {
        "torch.save": save_unsynced,
        "torch.save + fsync": save_synced,
        "labkit publish": lambda: void(store.publish(next(counter), state, {})),
        "distributed checkpoint": distributed,
        "plain copy": lambda: void(plain_copy(state)),
        "labkit background submit": lambda: void(saver.submit(next(counter), state, {})),
        "_wait": lambda: void(saver.wait()),
        "torch.load": lambda: void(torch.load(folder / "synced.pt", weights_only=True)),
        "labkit load": lambda: void(store.newest().payload),
        "_retain": lambda: void(store.retain()),
    }


def void(value: object) -> None:
    """Drop a result inside the time that is measured."""


RATIOS = {
    "durable_save": ("labkit publish", "torch.save + fsync"),
    "background_stall": ("labkit background submit", "plain copy"),
    "verified_load": ("labkit load", "torch.load"),
    "unsynced_save": ("torch.save", "torch.save + fsync"),
    "distributed_checkpoint": ("distributed checkpoint", "torch.save + fsync"),
}


def run(megabytes: int = 400, rounds: int = 7, folder: Path | None = None) -> dict[str, Any]:
    """{"ratios": {...}, "seconds": {...}, "limits", "aims", "megabytes", "rounds"}; ratios beside LIMITS and AIMS."""
    base = Path(tempfile.mkdtemp(prefix="labkit-bench-", dir=folder))
    seconds: dict[str, list[float]] = {}
    try:
        measured = ways(state_of(megabytes), base)
        for _ in range(rounds + 1):
            for name, way in measured.items():
                start = time.perf_counter()
                way()
                seconds.setdefault(name, []).append(time.perf_counter() - start)
    finally:
        shutil.rmtree(base)
    kept = {name: values[1:] for name, values in seconds.items()}  # the first round warms caches and memory
    ratios = {
        name: statistics.median(a / b for a, b in zip(kept[way], kept[yardstick], strict=True))
        for name, (way, yardstick) in RATIOS.items()
    }
    medians = {name: statistics.median(values) for name, values in kept.items() if not name.startswith("_")}
    return {
        "ratios": ratios,
        "seconds": medians,
        "limits": LIMITS,
        "aims": AIMS,
        "megabytes": megabytes,
        "rounds": rounds,
    }


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--megabytes", type=int, default=400)
    words.add_argument("--rounds", type=int, default=7)
    asked = words.parse_args()
    torch.set_num_threads(1)
    result = run(asked.megabytes, asked.rounds)
    rows = [Row(name, value * 1e3, "ms") for name, value in result["seconds"].items()]
    for name, value in result["ratios"].items():
        rows.append(Row(f"{name} / {RATIOS[name][1]}", value, "x", limit=LIMITS.get(name), aim=AIMS.get(name)))
    return report(rows, asked.json, result)


if __name__ == "__main__":
    sys.exit(main())
