"""Check of lesson 08: what a resumed run has cost, and what it has reached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit import randomness
from labkit.lab.checks.frame import call, check, near, not_yet, number, shown

LESSON = "08_budgeting"
Segments = list[tuple[int, int, float]]


def segments(seed: int) -> Segments:
    """(committed at the start, at the end, seconds) of three segments; the second goes back behind the first's end."""
    rng = randomness.numpy_generator("check spent", seed)
    a, lost, b, c = (int(n) for n in rng.integers([60, 5, 30, 20], [90, 20, 50, 40]))
    seconds = [round(float(s), 1) for s in rng.uniform(20, 60, 3)]
    return [(0, a, seconds[0]), (a - lost, a - lost + b, seconds[1]), (a - lost + b, a - lost + b + c, seconds[2])]


@check("spent", LESSON, minutes=10)
def check_spent(answer: Callable[..., Any], seed: int) -> str:
    """`spent(segments) -> (progress, seconds, abandoned)`.

    segments: (committed updates at the start, at the end, seconds) in order; a segment that starts below the end of the
    one before abandons its tail. progress: updates that count now; seconds: all that were paid for; abandoned:
    updates that were done and thrown away.
    """
    cut = segments(seed)
    done = sum(end - start for start, end, _ in cut)
    due = (cut[-1][1], sum(s for *_, s in cut), done - cut[-1][1])
    got = call(answer, list(cut))
    if not isinstance(got, (tuple, list)) or len(got) != 3:
        not_yet(
            "not three numbers",
            expected="(progress, seconds, abandoned)",
            seen=shown(got),
            try_next="Return all three.",
        )
    progress, seconds, abandoned = (
        number(v, name) for v, name in zip(got, ("progress", "seconds", "abandoned"), strict=True)
    )
    case = "; ".join(f"{start} to {end} in {s:g} s" for start, end, s in cut)
    if progress == done:
        not_yet(
            "abandoned work as progress",
            f"{done} updates were made, {due[2]} of them twice: the run stands at {due[0]}.",
            expected=str(due[0]),
            seen=f"{progress:g}",
            smallest=case,
            try_next="Progress is where the last segment ends.",
        )
    if progress != due[0]:
        not_yet("another progress", expected=str(due[0]), seen=f"{progress:g}", smallest=case)
    if not near(seconds, due[1]):
        tail = cut[0][2] * due[2] / (cut[0][1] - cut[0][0])
        less = seconds < due[1]
        if near(seconds, cut[-1][2]):
            not_yet(
                "only the last segment",
                expected=f"{due[1]:.4g} s",
                seen=f"{seconds:.4g} s",
                smallest=case,
                try_next="Add all segments.",
            )
        not_yet(
            "abandoned time not paid" if less else "another time",
            f"About {tail:.3g} s went into updates that were thrown away, and paid for." if less else "",
            expected=f"{due[1]:.4g} s",
            seen=f"{seconds:.4g} s",
            smallest=case,
            try_next="Cost is the sum over all segments.",
        )
    if abandoned != due[2]:
        not_yet(
            "abandoned tail not counted",
            expected=str(due[2]),
            seen=f"{abandoned:g}",
            smallest=case,
            try_next="All updates made, less the progress.",
        )
    return f"{due[2]} abandoned updates are cost, not progress."
