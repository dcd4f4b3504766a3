"""The loop that a careful person writes by hand for the digits: the oracle for loop.py and the yardstick of its cost.

It is written against torch alone, in the order lesson 01 teaches, and records the same quantities. Only the keyed
order, the data and the digest of the indices come from labkit, because they are inputs and not what is being checked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from labkit.order import EpochOrder, digest


class HandWritten:
    """AdamW, warm-up, clipping, an average and a record, over images in memory."""

    def __init__(
        self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, order: EpochOrder, *, rate: float,
        weight_decay: float, warmup: int, max_norm: float, decay: float, batch_size: int, norm_every: int,
        path: Path | None, cut: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        self.model, self.images, self.labels, self.order = model, images, labels, order
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=rate, weight_decay=weight_decay)
        self.rate, self.warmup, self.max_norm, self.decay = rate, warmup, max_norm, decay
        self.batch_size, self.norm_every, self.cut = batch_size, norm_every, cut
        self.average = [p.detach().clone() for p in self.parameters]
        self.epoch = self.position = self.updates = 0
        self.file = open(path, "w") if path else None
        self._set_rate()

    def _set_rate(self) -> None:
        factor = (self.updates + 1) / self.warmup if self.updates < self.warmup else 1.0
        self.optimizer.param_groups[0]["lr"] = self.rate * factor

    def update(self) -> dict[str, Any]:
        stop = min(self.position + self.batch_size, len(self.images))
        indices = self.order.indices(self.epoch, self.position, stop)
        rows = indices.tolist()
        used = self.optimizer.param_groups[0]["lr"]
        self.optimizer.zero_grad(set_to_none=True)
        loss_sum: Any = 0.0
        for start, end in self._pieces(len(rows)):
            chosen = rows[start:end]
            scores = self.model(self.images[chosen])
            loss = nn.functional.cross_entropy(scores, self.labels[chosen], reduction="sum")
            (loss / len(rows)).backward()
            loss_sum = loss_sum + loss.detach()
        norm = float(nn.utils.clip_grad_norm_(self.parameters, self.max_norm))
        measured = self.norm_every and (self.updates + 1) % self.norm_every == 0
        before = [p.detach().clone() for p in self.parameters] if measured else None
        self.optimizer.step()
        change = None
        if before is not None:
            moved = torch._foreach_sub([p.detach() for p in self.parameters], before)
            change = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(moved, 2.0))))
        self.updates += 1
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.parameters, 1 - self.decay)
        self._set_rate()
        self.position = stop
        record = {
            "update": self.updates, "epoch": self.epoch, "cursor": stop, "indices": digest(indices),
            "loss_sum": float(loss_sum), "loss_count": len(rows), "grad_norm": norm, "clipped": norm > self.max_norm,
            "update_norm": change, "rates_used": [used], "rates_next": [self.optimizer.param_groups[0]["lr"]],
        }  # fmt: skip
        if stop == len(self.images):
            self.epoch, self.position = self.epoch + 1, 0
        if self.file is not None:
            self.file.write(json.dumps(record) + "\n")
        return record

    def _pieces(self, n: int) -> list[tuple[int, int]]:
        if not self.cut:
            return [(0, n)]
        pieces, start = [], 0
        while start < n:
            size = self.cut[len(pieces) % len(self.cut)]
            pieces.append((start, min(start + size, n)))
            start += size
        return pieces
