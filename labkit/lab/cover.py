"""The picture on the front page, from a real run: `python -m labkit.lab.cover notebooks/images/resumed.png`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from labkit.lab import theme
from labkit.lab.plots.resume import ResumePlot, resume_plot, resumed_against_uninterrupted, sentence
from labkit.proof.rehearse import Rehearsal
from labkit.recipe import resolve
from labkit.recipes import find

STOP, UPDATES, FIRST, LOST = 73, 100, 61, "second moment"
LOGGED = {"indices": "indices", "used rate": "rates_used", "gradient norm": "grad_norm"}


def cover() -> ResumePlot:
    """The convolutional digits network, stopped after 73 of 100 updates, continued without AdamW's second moment."""
    config = resolve(find("digits"), "digits", {"network": "conv", "updates": UPDATES})
    rehearsal = Rehearsal(find("digits"), config, UPDATES, [STOP], seeds=4)
    resumed = rehearsal.resumed(STOP, [LOST])
    straight = rehearsal.straight
    shown = slice(FIRST - 1, None)

    def columns(records: list[dict[str, object]], probe: list[float]) -> dict[str, list[object]]:
        found: dict[str, list[object]] = {name: [r[key] for r in records[shown]] for name, key in LOGGED.items()}
        found["loss"] = [r["loss_sum"] / r["loss_count"] for r in records[shown]]  # type: ignore[operator]
        return {**found, "probe": list(probe[shown]), "rate": [r["rates_used"][0] for r in records[shown]]}  # type: ignore[index]

    both = straight.records[:STOP] + resumed.track.records
    probes = straight.probe[:STOP] + resumed.track.probe
    distance = np.concatenate([np.zeros(STOP), resumed.distance])[shown]
    band = np.vstack([rehearsal.band(), [straight.probe]])[:, shown]
    return resume_plot(
        STOP, LOST, columns(straight.records, straight.probe), columns(both, probes), distance=distance, band=band,
        first=FIRST,
    )  # fmt: skip


def main(target: str) -> None:
    """Draw the cover and say in one sentence what it shows."""
    torch.set_num_threads(1)
    data = cover()
    Path(target).write_bytes(theme.png(resumed_against_uninterrupted(data)))
    print(sentence(data))


if __name__ == "__main__":
    main(sys.argv[1])
