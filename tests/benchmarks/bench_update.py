"""What labkit costs per update over a hand-written loop with the same features, side by side in one process.

Both train the 64-64-10 network on the digits, one thread: clip, average, warm-up, record to a file, update norm at the
same interval. They take turns in short blocks, so a drift of the machine hits both. The result is the median ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from time import thread_time as clock  # the time of this thread: neighbours on the machine do not count
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from oracle import HandWritten  # noqa: E402

from labkit import run  # noqa: E402
from labkit.loop import Attempt  # noqa: E402
from labkit.order import EpochOrder  # noqa: E402
from labkit.recipes.digits import load, mlp  # noqa: E402

BLOCKS, UPDATES = 40, 50


def run_bench(blocks: int = BLOCKS, updates: int = UPDATES) -> dict[str, float]:
    """{"ratio", "seconds_by_hand", "seconds_labkit"} per update; the ratio is the median over pairs of blocks."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data = load("train")
        by_hand = HandWritten(
            mlp(), data.images, data.labels, EpochOrder("randperm", 0, len(data)), rate=0.003, weight_decay=0.01,
            warmup=20, max_norm=1.0, decay=0.99, batch_size=64, norm_every=10, path=Path(folder) / "record.jsonl",
        )  # fmt: skip
        pairs: list[tuple[float, float]] = []
        since = clock()

        def take_turns(record: Attempt) -> None:
            nonlocal since
            if record.attempt % updates:
                return
            own, start = clock() - since, clock()
            for _ in range(updates):
                by_hand.update()
            pairs.append((clock() - start, own))
            since = clock()

        settings = {"warmup": 20, "max_norm": 1.0, "ema_decay": 0.99, "norm_every": 10}
        with run.start("digits", Path(folder) / "run", updates=(blocks + 2) * updates, **settings) as session:
            session.observers.append(take_turns)
            session.train()
    pairs = pairs[2:]
    return {
        "ratio": statistics.median(own / hand for hand, own in pairs),
        "seconds_by_hand": statistics.median(hand for hand, _ in pairs) / updates,
        "seconds_labkit": statistics.median(own for _, own in pairs) / updates,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    found = run_bench()
    print(json.dumps(found) if parser.parse_args().json else f"update: {found['ratio']:.3f}x a hand-written loop")
