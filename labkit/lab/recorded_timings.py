"""Times of one machine, recorded once, so that the figures of lesson 08 exist without running anything.

Made with labkit.lab.timings.record, each number the smallest of several tries, since others used the machine
too (and `update` in processor time for that reason): Python 3.11 and torch 2.13 in an x86-64 Linux container with two
cores, one thread. All in seconds.
"""

from __future__ import annotations

from labkit.lab.timings import Timings

RECORDED = Timings(
    machine="recorded: x86-64, 1 thread",
    update={
        ("mlp", 8): 0.000571,
        ("mlp", 64): 0.000701,
        ("mlp", 512): 0.00124,
        ("conv", 8): 0.00165,
        ("conv", 64): 0.00239,
        ("conv", 512): 0.0112,
    },
    first=(
        0.00923,
        0.000934,
        0.000824,
        0.000783,
        0.000684,
        0.000647,
        0.000644,
        0.000671,
        0.00065,
        0.00063,
        0.000625,
        0.000609,
    ),
    parts={
        "as it is": {
            "data": 0.0447,
            "forward": 0.045,
            "backward": 0.0803,
            "optimizer": 0.0788,
            "evaluation": 0.0,
            "save": 0.0888,
            "other": 0.0194,
        },
        "shifted, noisy images": {
            "data": 1.35,
            "forward": 0.0863,
            "backward": 0.11,
            "optimizer": 0.109,
            "evaluation": 0.0,
            "save": 0.175,
            "other": 0.025,
        },
    },
    runs={
        5: (
            {
                "data": 0.0642,
                "forward": 0.0975,
                "backward": 0.172,
                "optimizer": 0.114,
                "evaluation": 0.0157,
                "save": 3.41,
                "other": 0.06,
            },
            {
                "data": 0.0902,
                "forward": 0.0894,
                "backward": 0.0882,
                "optimizer": 0.0919,
                "evaluation": 0.0144,
                "save": 2.06,
                "other": 0.0299,
            },
        ),
        20: (
            {
                "data": 0.0642,
                "forward": 0.0975,
                "backward": 0.172,
                "optimizer": 0.114,
                "evaluation": 0.0157,
                "save": 1.08,
                "other": 0.06,
            },
            {
                "data": 0.0557,
                "forward": 0.0903,
                "backward": 0.0877,
                "optimizer": 0.0832,
                "evaluation": 0.019,
                "save": 0.529,
                "other": 0.0296,
            },
        ),
        50: (
            {
                "data": 0.0642,
                "forward": 0.0975,
                "backward": 0.172,
                "optimizer": 0.114,
                "evaluation": 0.0157,
                "save": 0.62,
                "other": 0.06,
            },
            {
                "data": 0.0518,
                "forward": 0.0727,
                "backward": 0.07,
                "optimizer": 0.0977,
                "evaluation": 0.0165,
                "save": 0.398,
                "other": 0.0264,
            },
        ),
        100: (
            {
                "data": 0.0642,
                "forward": 0.0975,
                "backward": 0.172,
                "optimizer": 0.114,
                "evaluation": 0.0157,
                "save": 0.465,
                "other": 0.06,
            },
            {
                "data": 0.0447,
                "forward": 0.0613,
                "backward": 0.091,
                "optimizer": 0.0734,
                "evaluation": 0.0107,
                "save": 0.314,
                "other": 0.0324,
            },
        ),
        200: (
            {
                "data": 0.0642,
                "forward": 0.0975,
                "backward": 0.172,
                "optimizer": 0.114,
                "evaluation": 0.0157,
                "save": 0.387,
                "other": 0.06,
            },
            {
                "data": 0.0549,
                "forward": 0.0629,
                "backward": 0.0938,
                "optimizer": 0.0862,
                "evaluation": 0.0177,
                "save": 0.263,
                "other": 0.024,
            },
        ),
    },
)
