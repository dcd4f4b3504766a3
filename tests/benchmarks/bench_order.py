"""Is an order, and a feed on it, as quickly ready deep inside 10^8 examples as at their start?

Ratios of medians, measured in turn in one process, each time with fresh objects; peak memory of Python and numpy
allocations, which leaves the import of torch out. Budget: 1.2; aim: 1.0.
"""

from __future__ import annotations

import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
from _table import Row, parser, report

from labkit.order import Cursor, EpochOrder

LENGTH, NEAR, FAR, BATCH = 10**8, 10, 10**7, 64
REPEATS = 60
BUDGET, AIM = 1.2, 1.0


class Virtual:
    """As many examples as asked for, none of them stored."""

    def __len__(self) -> int:
        return LENGTH

    def __getitems__(self, indices: list[int]) -> np.ndarray:
        return np.asarray(indices)


def order_ready(cursor: int) -> None:
    EpochOrder("feistel", 0, LENGTH).indices(0, cursor, cursor + BATCH)


def feed_ready(cursor: int) -> None:
    from labkit.loading import Feed

    feed = Feed(Virtual(), np.asarray, None, EpochOrder("feistel", 0, LENGTH), batch_size=BATCH)
    feed.at(Cursor(0, cursor))
    feed.next()


def median_seconds(work: Callable[[int], None]) -> tuple[float, float]:
    """Medians at NEAR and FAR, taken in turn so that both see the same machine."""
    work(NEAR)
    times: dict[int, list[float]] = {NEAR: [], FAR: []}
    for turn in range(REPEATS):
        for cursor in (NEAR, FAR) if turn % 2 else (FAR, NEAR):
            begin = time.perf_counter()
            work(cursor)
            times[cursor].append(time.perf_counter() - begin)
    return statistics.median(times[NEAR]), statistics.median(times[FAR])


def peak_bytes(work: Callable[[int], None], cursor: int) -> int:
    tracemalloc.start()
    try:
        work(cursor)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def run() -> dict[str, Any]:
    """Seconds and bytes at both cursors, and the ratios that the budget is about."""
    found: dict[str, Any] = {}
    for name, work in (("order", order_ready), ("feed", feed_ready)):
        near, far = median_seconds(work)
        peaks = peak_bytes(work, NEAR), peak_bytes(work, FAR)
        found |= {
            f"{name}_seconds_near": near,
            f"{name}_seconds_far": far,
            f"{name}_time_ratio": far / near,
            f"{name}_peak_bytes": peaks[1],
            f"{name}_memory_ratio": peaks[1] / peaks[0],
        }
    return found


def main() -> int:
    asked = parser(__doc__).parse_args()
    found, rows = run(), []
    for name in ("order", "feed"):
        rows += [
            Row(f"{name} ready at {NEAR}", found[f"{name}_seconds_near"] * 1e6, "us"),
            Row(f"{name} ready at {FAR}", found[f"{name}_seconds_far"] * 1e6, "us"),
            Row(f"{name}, time far / near", found[f"{name}_time_ratio"], "x", limit=BUDGET, aim=AIM),
            Row(f"{name}, memory far / near", found[f"{name}_memory_ratio"], "x", limit=BUDGET, aim=AIM),
        ]
    return report(rows, asked.json, found)


if __name__ == "__main__":
    sys.exit(main())
