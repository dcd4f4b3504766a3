"""Equality as a detector: compare two runs, prove a recipe exact, drop one piece of state and see. Lesson 04."""

from labkit.proof.ablate import PIECES, Ablation, ablate
from labkit.proof.compare import Comparison, Difference, compare, first_difference
from labkit.proof.prove import Proof, prove

__all__ = [
    "PIECES",
    "Ablation",
    "Comparison",
    "Difference",
    "Proof",
    "ablate",
    "compare",
    "first_difference",
    "prove",
]
