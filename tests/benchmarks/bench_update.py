"""What labkit costs per update over a hand-written loop with the same features, side by side in one process.

Both train the 64-64-10 network on the digits, one thread: clip, average, warm-up, record to a file, update norm at the
same interval. They take turns in short blocks, so a drift of the machine hits both. The result is the median ratio.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from time import thread_time as clock  # the time of this thread: neighbours on the machine do not count

import torch
from _table import Row, parser, report
from oracle import HandWritten

from labkit import run
from labkit.loop import Attempt
from labkit.order import EpochOrder
from labkit.recipes.digits import load, mlp

BLOCKS, UPDATES = 40, 50
BUDGET, AIM = 1.10, 1.03


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
            session.watch = take_turns  # as labkit's own progress line: no stream is put back after it
            session.train()
    pairs = pairs[2:]
    return {
        "ratio": statistics.median(own / hand for hand, own in pairs),
        "seconds_by_hand": statistics.median(hand for hand, _ in pairs) / updates,
        "seconds_labkit": statistics.median(own for _, own in pairs) / updates,
    }


def main() -> int:
    asked = parser(__doc__).parse_args()
    found = run_bench()
    rows = [
        Row("update, hand-written loop", found["seconds_by_hand"] * 1e6, "us"),
        Row("update, labkit", found["seconds_labkit"] * 1e6, "us"),
        Row("labkit / hand-written", found["ratio"], "x", limit=BUDGET, aim=AIM),
    ]
    return report(rows, asked.json, found)


if __name__ == "__main__":
    sys.exit(main())
