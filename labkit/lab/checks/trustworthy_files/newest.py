"""Check of lesson 05: the newest checkpoint that can be trusted."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit import randomness
from labkit.lab.checks.frame import call, check, not_yet, shown

ENTRIES = 7
LESSON = "05_trustworthy_files"


def write(folder: Path, name: str, update: int, data: bytes) -> Path:
    """A checkpoint as this exercise has it: state.bin, and manifest.json with update, size and sha256."""
    path = folder / name
    path.mkdir()
    (path / "state.bin").write_bytes(data)
    manifest = {"update": update, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return path


def flip(path: Path, bit: int) -> None:
    """One bit of a file changed; its size stays."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@check("newest", LESSON, minutes=15)
def check_newest(answer: Callable[..., Any], seed: int) -> str:
    """`newest(folder) -> Path | None`: the checkpoint with the highest update whose bytes match its manifest.

    Each checkpoint is a folder with state.bin and manifest.json (update, size, sha256). Whatever is incomplete, damaged
    or something else entirely is passed over, never repaired, never removed. None when nothing can be trusted.
    """
    rng = randomness.numpy_generator("check newest", seed)
    with tempfile.TemporaryDirectory(prefix="labkit-check-") as top:
        folder = Path(top)
        low, high = 8 + seed % 2, 10 + seed % 5
        old = write(folder, f"update-{low}", low, rng.bytes(300))
        new = write(folder, f"update-{high}", high, rng.bytes(300))
        os.utime(old, (2_000_000_000, 2_000_000_000))
        _judge(answer, folder, new, old, low, high)
        (folder / "notes.txt").write_text("not a checkpoint")
        (folder / f"update-{high + 1}.tmp").mkdir()
        _pass_over(answer, folder, new, f"a temporary folder of update {high + 1} without files", "trips over debris")
        torn = write(folder, f"update-{high + 2}", high + 2, rng.bytes(300))
        (torn / "manifest.json").write_text('{"update": ')
        _pass_over(answer, folder, new, f"a torn manifest in update {high + 2}", "trips over debris")
        short = write(folder, f"update-{high + 3}", high + 3, rng.bytes(300))
        (short / "state.bin").write_bytes((short / "state.bin").read_bytes()[:200])
        _pass_over(answer, folder, new, f"update {high + 3} cut short, 200 of 300 bytes", "takes half a file")
        bit = int(rng.integers(2400))
        flip(write(folder, f"update-{high + 4}", high + 4, rng.bytes(300)) / "state.bin", bit)
        _pass_over(
            answer, folder, new, f"bit {bit} of update {high + 4} flipped, size unchanged", "takes a flipped bit"
        )
        flip(new / "state.bin", 5)
        _pass_over(answer, folder, old, f"update {high} damaged too", "gives up after the newest")
        flip(old / "state.bin", 5)
        if call(answer, folder) is not None:
            not_yet(
                "never says none",
                expected="None",
                seen="a damaged checkpoint",
                smallest="a folder in which all are damaged",
                try_next="Return None when no checkpoint verifies.",
            )
        if len(list(folder.iterdir())) != ENTRIES:
            not_yet(
                "removes things",
                expected="the folder as it was",
                seen="something is gone",
                try_next="A reader only reads.",
            )
    return "Debris, torn manifests, short files and single flipped bits are passed over."


def _judge(answer: Callable[..., Any], folder: Path, new: Path, old: Path, low: int, high: int) -> None:
    got = call(answer, folder)
    if isinstance(got, (str, os.PathLike)) and Path(got) == new:
        return
    if isinstance(got, (str, os.PathLike)) and Path(got) == old:
        by_name = f"update-{low}" > f"update-{high}"
        not_yet(
            "sorts names as text, or by time",
            f"As text update-{low} comes after update-{high}; and copying a folder changes its time."
            if by_name
            else "Copying a folder changes its time.",
            expected=f"update {high}",
            seen=f"update {low}",
            smallest=f"two good checkpoints, {low} and {high}",
            try_next="Take the number from the manifest, as a whole number.",
        )
    not_yet(
        "another answer",
        expected=f"the folder update-{high}",
        seen=shown(got),
        smallest=f"two good checkpoints, {low} and {high}",
    )


def _pass_over(answer: Callable[..., Any], folder: Path, due: Path, what: str, name: str) -> None:
    got = call(answer, folder)
    if got is not None and isinstance(got, (str, os.PathLike)) and Path(got) == due:
        return
    hint = {
        "takes a flipped bit": "It loads, and its size is right: that is no check. Compare the digest of the bytes.",
        "takes half a file": "Compare the size, and better the digest.",
        "gives up after the newest": "Go on to the next one when the newest is damaged.",
    }.get(name, "What is incomplete is passed over.")
    seen = Path(got).name if isinstance(got, (str, os.PathLike)) else shown(got)
    not_yet(
        name,
        hint,
        expected=due.name,
        seen=seen,
        smallest=what,
        try_next="Check one checkpoint in a function of its own.",
    )
