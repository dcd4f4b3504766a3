"""Publishing a checkpoint, stopped after every single move: by a kill, a power cut, a full disk. Lesson 05.

The moves are made for real, in a folder, through the file layer that labkit itself publishes with. Only the waiting for
the disk is left out: what an fsync had confirmed is written down instead, and a power cut leaves no more than that.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from labkit.checkpoint import CheckpointStore
from labkit.errors import CheckpointError, StorageError
from labkit.files import Files
from labkit.lab.plots.files import PublicationPlot

EVENTS = ("killed", "power cut", "disk full")
Publish = Callable[["Disk", Path], None]
Read = Callable[[Path], str]
BAD = ("none", "half", "old", "new")
"""Outcomes from bad to good: of what a power cut may leave, the worst counts."""


@dataclass
class Node:
    """A file or folder as the process sees it, and what of it is confirmed to be on the disk."""

    data: bytes | None = None  # None: a folder
    safe: bytes = b""
    names: dict[str, Node] = field(default_factory=dict)
    safe_names: dict[str, Node] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path) -> Node:
        """What lies in a folder, all of it safe."""
        if path.is_file():
            return cls(path.read_bytes(), path.read_bytes())
        names = {child.name: cls.of(child) for child in path.iterdir()}
        return cls(None, b"", names, dict(names))

    def write(self, path: Path, names_arrived: bool, torn: bool) -> None:
        """One of the disks that a power cut may leave."""
        if self.data is not None:
            half = self.data[: len(self.data) // 2]
            path.write_bytes(half if torn and self.data != self.safe else self.safe)
            return
        path.mkdir(exist_ok=True)
        for name, child in (self.names if names_arrived else self.safe_names).items():
            child.write(path / name, names_arrived, torn)


class Disk(Files):
    """The disk until `event` strikes after `moves` moves. done: the moves made, in words; nothing happens after."""

    def __init__(self, root: Path, moves: int | None = None, event: str = "killed") -> None:
        self.root, self.moves, self.event = root, moves, event
        self.done: list[str] = []
        self.model = Node.of(root)

    def node(self, path: Path) -> Node:
        """The model of a path inside the root."""
        found = self.model
        for part in path.relative_to(self.root).parts:
            found = found.names[part]
        return found

    def move(self, word: str, path: Path, grows: bool = False) -> None:
        """Count a move, or be stopped by the event in its place."""
        if self.moves is not None and len(self.done) >= self.moves:
            if self.event != "disk full":
                raise OSError(errno.EIO, "the process was killed here")
            if grows:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.done.append(f"{word} {_short(path, self.root)}")

    def mkdir(self, path: Path) -> None:
        self.move("make", path, grows=True)
        super().mkdir(path)
        self.node(path.parent).names[path.name] = Node()

    def create(self, path: Path) -> FileIO:
        self.move("create", path, grows=True)
        self.node(path.parent).names[path.name] = Node(b"")
        return super().create(path)

    def empty(self, path: Path) -> FileIO:
        """Open an existing file for writing, as `open(path, "wb")` does: what was in it is gone at once."""
        self.move("empty", path)
        self.node(path).data = b""
        return open(path, "wb", buffering=0)

    def write(self, handle: FileIO, data: bytes | memoryview) -> None:
        path = Path(str(handle.name))
        try:
            self.move("write", path, grows=True)
        except OSError:
            part = bytes(data)[: len(data) // 2]  # a write that is stopped has often begun
            super().write(handle, part)
            self.node(path).data = (self.node(path).data or b"") + part
            raise
        super().write(handle, data)
        self.node(path).data = (self.node(path).data or b"") + bytes(data)

    def fsync(self, handle: FileIO) -> None:
        path = Path(str(handle.name))
        self.move("sync", path)
        self.node(path).safe = self.node(path).data or b""

    def fsync_folder(self, path: Path) -> None:
        self.move("sync", path)
        self.node(path).safe_names = dict(self.node(path).names)

    def rename(self, source: Path, target: Path) -> None:
        self.move("rename", source)
        super().rename(source, target)
        self.node(target.parent).names[target.name] = self.node(source.parent).names.pop(source.name)

    def replace(self, source: Path, target: Path) -> None:
        self.move("rename", source)
        super().replace(source, target)
        self.node(target.parent).names[target.name] = self.node(source.parent).names.pop(source.name)

    def remove(self, path: Path) -> None:
        self.move("remove", path)
        super().remove(path)
        self.node(path.parent).names.pop(path.name)

    def rmdir(self, path: Path) -> None:
        self.move("remove", path)
        super().rmdir(path)
        self.node(path.parent).names.pop(path.name)


def _short(path: Path, root: Path) -> str:
    if path == root:
        return "the folder"
    name = re.sub(r"-[0-9a-f]{8}$", "", path.name)
    return re.sub(r"^\.tmp-update-\d+", "temporary folder", re.sub(r"^\.gone-update-0*(\d+)", r"old folder", name))


@dataclass(frozen=True)
class Left:
    """What one event after some moves left: the outcome for a reader, and what lies there (name, bytes)."""

    outcome: str
    listing: tuple[tuple[str, int], ...]


def after(prepared: Path, publish: Publish, read: Read, moves: int, event: str) -> Left:
    """Publish on a copy of a prepared folder, let the event strike after so many moves, and look what a reader finds.

    A power cut may leave several disks (was the new name there already? how much of a file?); the worst one is told.
    """
    with tempfile.TemporaryDirectory(prefix="labkit-cut-") as top:
        folder = Path(top) / "disk"
        shutil.copytree(prepared, folder)
        disk = Disk(folder, moves, event)
        try:
            publish(disk, folder)
        except (OSError, StorageError):
            pass  # the process is dead, or was told that the disk is full; either way it got no further
        if event != "power cut":
            return Left(read(folder), _listing(folder))
        return min((_lost(disk, Path(top), names, torn, read) for names in (True, False) for torn in (True, False)),
                   key=lambda left: BAD.index(left.outcome))  # fmt: skip


def _lost(disk: Disk, top: Path, names_arrived: bool, torn: bool, read: Read) -> Left:
    folder = top / f"lost-{names_arrived}-{torn}"
    disk.model.write(folder, names_arrived, torn)
    return Left(read(folder), _listing(folder))


def _listing(folder: Path) -> tuple[tuple[str, int], ...]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return tuple((re.sub(r"-[0-9a-f]{8}/", "/", path.relative_to(folder).as_posix()), path.stat().st_size)
                 for path in paths)  # fmt: skip


def every_move(prepared: Path, publish: Publish) -> list[str]:
    """The moves of a publication that nothing disturbs, in words."""
    with tempfile.TemporaryDirectory(prefix="labkit-cut-") as top:
        folder = Path(top) / "disk"
        shutil.copytree(prepared, folder)
        disk = Disk(folder)
        publish(disk, folder)
        return disk.done


def try_every(prepared: Path, publish: Publish, read: Read, event: str = "killed") -> PublicationPlot:
    """The event after each move, one after the other; data of the picture."""
    moves = every_move(prepared, publish)
    left = [after(prepared, publish, read, count, event) for count in range(1, len(moves) + 1)]
    return PublicationPlot(moves, [one.outcome for one in left], event, [one.listing for one in left])


def labkit_reader(old: int, new: int) -> Read:
    """What labkit's reader finds in a folder of checkpoints: "old", "new", "none"; "half" if a name stands on less."""

    def read(folder: Path) -> str:
        store = CheckpointStore(folder)
        if any(store.verify(entry.path) for entry in store.list()):
            return "half"
        try:
            return {old: "old", new: "new"}[store.newest().update]
        except CheckpointError:
            return "none"

    return read
