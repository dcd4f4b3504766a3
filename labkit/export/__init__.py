"""Artefacts for use, beside the checkpoints that are for going on: inference, adapter, merged. Lesson 09.

Read artefact.py first (the folder and what it says), then inference.py, adapter.py, merged.py; weights.py and
fitting.py know names.
"""

from labkit.export.adapter import LowRank, attach, attached, export_adapter, load_adapter, merge
from labkit.export.artefact import SAYS, Artefact, read
from labkit.export.fitting import load_weights, read_tensors
from labkit.export.inference import Inference, export_inference, load_inference
from labkit.export.merged import export_merged
from labkit.export.weights import digest

__all__ = [
    "SAYS",
    "Artefact",
    "Inference",
    "LowRank",
    "attach",
    "attached",
    "digest",
    "export_adapter",
    "export_inference",
    "export_merged",
    "load_adapter",
    "load_inference",
    "load_weights",
    "merge",
    "read",
    "read_tensors",
]
