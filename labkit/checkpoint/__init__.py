"""Checkpoints that can be trusted: published by one rename, verified before they are believed. Lesson 05.

Read store.py first (publication, retention), then entries.py and archive.py (reading), plain.py (what may be saved) and
background.py. The checkpoint knows names, tensors and plain values, not models.
"""

from labkit.checkpoint.background import BackgroundSaver
from labkit.checkpoint.entries import Entry, Found, Published, Rejected, verify
from labkit.checkpoint.plain import payload_bytes, plain
from labkit.checkpoint.space import Space
from labkit.checkpoint.store import CheckpointStore

__all__ = [
    "BackgroundSaver",
    "CheckpointStore",
    "Entry",
    "Found",
    "Published",
    "Rejected",
    "Space",
    "payload_bytes",
    "plain",
    "verify",
]
