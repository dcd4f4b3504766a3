"""Check of lesson 05: the eight moves of publication in an order that survives a kill after each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from labkit import randomness
from labkit.lab.checks.frame import check, not_yet, shown

LESSON = "05_trustworthy_files"
MOVES = {
    "make folder": "make a temporary folder beside the target",
    "write state": "write state.pt into it, hashing while writing",
    "write manifest": "write manifest.json into it, with size and digest of state.pt",
    "sync files": "fsync both files: what was written is on the disk, not only in memory",
    "verify": "read both files back from the temporary folder and compare with the digest",
    "rename": "give the temporary folder its final name",
    "sync parent": "fsync the folder above: the new name is on the disk",
    "remove oldest": "remove the oldest checkpoint, to make room",
}


def shuffled(seed: int = 0) -> list[str]:
    """The moves in an order to start from."""
    return [str(move) for move in randomness.numpy_generator("publish", seed).permutation(list(MOVES))]


@dataclass(frozen=True)
class Disk:
    """What a reader finds: files written and files safe on the disk, whether the final name exists and is safe."""

    folder: bool = False
    written: frozenset[str] = frozenset()
    safe: frozenset[str] = frozenset()
    verified: bool = False
    named: bool = False
    name_safe: bool = False
    old: bool = True
    impossible: str = field(default="")

    def after(self, move: str) -> Disk:
        """The disk after one more move; impossible says why a move cannot be made."""
        wants = {"write state": self.folder, "write manifest": "write state" in self.written, "rename": self.folder}
        if not wants.get(move, True):
            what = "there is no digest yet" if move == "write manifest" else "there is no temporary folder yet"
            return replace(self, impossible=what)
        return {
            "make folder": lambda: replace(self, folder=True),
            "write state": lambda: replace(self, written=self.written | {move}),
            "write manifest": lambda: replace(self, written=self.written | {move}),
            "sync files": lambda: replace(self, safe=self.written),
            "verify": lambda: replace(self, verified=len(self.safe) == 2),
            "rename": lambda: replace(self, named=True),
            "sync parent": lambda: replace(self, name_safe=self.named),
            "remove oldest": lambda: replace(self, old=False),
        }[move]()

    @property
    def complete(self) -> bool:
        """Both files are safe on the disk."""
        return len(self.safe) == 2

    @property
    def resumable(self) -> bool:
        """Something to resume from survives a power cut now, whether or not an unsafe name does."""
        return self.old or (self.name_safe and self.complete and self.verified)


@check("publish", LESSON, minutes=10, wants_function=False)
def check_publish(answer: Any, seed: int) -> str:
    """`order`: the eight names of MOVES in an order of your own.

    After each move the power is cut. Then no final name may stand on anything but a complete, verified checkpoint, and
    one complete checkpoint must be left.
    """
    if not isinstance(answer, (list, tuple)) or sorted(map(str, answer)) != sorted(MOVES):
        not_yet(
            "not the eight moves",
            expected="each once: " + ", ".join(MOVES),
            seen=shown(answer),
            try_next="Copy the names.",
        )
    disk = Disk()
    for number, move in enumerate(answer, start=1):
        disk = disk.after(move)
        where = f"a power cut after move {number}, {move}"
        if disk.impossible:
            not_yet(
                "cannot be done yet",
                f"Move {number}, {move}: {disk.impossible}.",
                expected="a move that can be made",
                seen=move,
                smallest=", ".join(answer[:number]),
                try_next=f"{move}: {MOVES[move]}.",
            )
        if disk.named and not disk.complete:
            _half(disk, number, where)
        if disk.named and not disk.verified:
            not_yet(
                "named before it was verified",
                f"A power cut after move {number} leaves a name that nobody has checked: "
                "a write can succeed and the disk hold other bytes.",
                expected="verified first, named afterwards",
                seen="a name on bytes that were never read back",
                smallest=where,
                try_next="Read back what is on the disk (so after fsync), then rename.",
            )
        if not disk.resumable:
            _nothing_left(disk, number, where)
    return f"{len(MOVES)} power cuts, and every one leaves a complete checkpoint under its name."


def _half(disk: Disk, number: int, where: str) -> None:
    missing = [name for name in ("write state", "write manifest") if name not in disk.safe]
    files = " and ".join({"write state": "state.pt", "write manifest": "manifest.json"}[name] for name in missing)
    written = all(name in disk.written for name in missing)
    not_yet(
        "a name on half a file",
        f"A power cut after move {number} leaves a final name that points at half a checkpoint: {files} "
        + ("was written, but never synced." if written else "is not there yet."),
        expected="both files on the disk before the final name",
        seen=f"{files} not safe",
        smallest=where,
        try_next="The name comes last: write, sync, verify, and only then rename.",
    )


def _nothing_left(disk: Disk, number: int, where: str) -> None:
    named = disk.named
    why = "the new name is in memory only" if named else "the new one has no name yet"
    not_yet(
        "the name is not on the disk" if named else "removes the old one too early",
        f"A power cut after move {number} leaves nothing to resume from: the oldest is gone and {why}.",
        expected="one complete checkpoint after every move",
        seen="none",
        smallest=where,
        try_next="A rename changes the folder above: sync that one after it, and remove nothing before."
        if named
        else "Nothing is removed before its successor is verified, named and synced.",
    )
