"""Durations, sizes and money for people; every value is also in the JSON as a plain number with its unit's name."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """850 us, 27 ms, 3.52 s, 4.1 min, 7.25 h, 3.4 days."""
    for below, unit, divisor in (
        (1e-3, "us", 1e-6), (1, "ms", 1e-3), (120, "s", 1), (7200, "min", 60), (48 * 3600, "h", 3600),
    ):  # fmt: skip
        if seconds < below:
            return f"{seconds / divisor:.3g} {unit}"
    return f"{seconds / 86400:.3g} days"


def size(count: float) -> str:
    """Bytes in powers of 1000: 512 B, 67.8 kB, 331 MB, 1.2 GB, 3 TB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def money(amount: float, currency: str) -> str:
    """A price that is not zero is never shown as zero."""
    return f"less than 0.01 {currency}" if 0 < amount < 0.01 else f"{amount:.2f} {currency}"
