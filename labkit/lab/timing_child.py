"""One fresh process that times its first updates. Lesson 08.

Started by labkit.lab.timings, by its path, so that it does not import the plotting that the rest of lab/ needs.
`python -P timing_child.py COUNT` prints the seconds of each update of the digits' mlp as a JSON list.
"""

from __future__ import annotations

import json
import sys
import time

import torch

from labkit.recipes import digits


def main(count: int) -> int:
    """Build, then time `count` updates one by one."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data, model = digits.load("train"), digits.mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    seconds = []
    for rows in torch.randperm(len(data)).split(64)[:count]:
        begun = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(data.images[rows]), data.labels[rows]).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
    print(json.dumps(seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
