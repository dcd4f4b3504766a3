"""Random streams: keyed by a hash, captured as plain values, put back all or not at all. Lesson 02.

Two ideas. A *key* turns names and numbers, such as (seed, epoch, example), into a generator of its own, so that nothing
has to be remembered (keys.py). A *capture* photographs the streams that do move while training, so that a resume finds
them where they were (streams.py). Torch is imported by the functions that need it: the order of the data does without.
"""

from labkit.randomness.keys import key, numpy_generator, seed_all, seed_cpu, torch_generator
from labkit.randomness.streams import (
    Explicit,
    Saved,
    callers_kept,
    capture,
    check,
    check_generators,
    differences,
    preserved,
    restore,
)

__all__ = [
    "Explicit",
    "Saved",
    "callers_kept",
    "capture",
    "check",
    "check_generators",
    "differences",
    "key",
    "numpy_generator",
    "preserved",
    "restore",
    "seed_all",
    "seed_cpu",
    "torch_generator",
]
