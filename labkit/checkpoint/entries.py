"""What lies in a folder of checkpoints: found by name, checked by manifest, believed when verified. Lesson 05."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.checkpoint.archive import MANIFEST, STATE, Manifest, check_state, load_state, read_manifest
from labkit.errors import CheckpointError, LabkitError
from labkit.files import storage_error

NAME = re.compile(r"update-(\d{1,18})(?:\.(\d{1,6}))?")
DEBRIS = re.compile(r"\.(?:tmp|gone)-update-\d+(?:\.\d+)?-[0-9a-f]{8}")


@dataclass(frozen=True)
class Rejected:
    """A folder that bears the name of a checkpoint and is not one that can be used."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Entry:
    """A folder with the name of a checkpoint. manifest is None, and reason says why, when it cannot be read."""

    update: int
    path: Path
    manifest: Manifest | None
    reason: str | None = None
    generation: int = 0

    @property
    def run_id(self) -> Any:
        return self.manifest["facts"].get("run_id") if self.manifest else None


@dataclass(frozen=True)
class Published:
    """A checkpoint that is on the disk and was read back."""

    update: int
    path: Path
    manifest: Manifest


@dataclass
class Found:
    """A verified checkpoint, its payload in memory of its own, and the newer ones that could not be used."""

    update: int
    path: Path
    payload: dict[str, Any]
    manifest: Manifest
    rejected: list[Rejected] = field(default_factory=list)


def scan(folder: Path) -> list[Entry]:
    """Every folder that bears a checkpoint's name, highest number first. Manifests are read, states are not."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise storage_error(error, f"read the folder {folder}") from error
    entries = [_entry(folder / name, match) for name in names if (match := NAME.fullmatch(name))]
    return sorted(entries, key=lambda entry: (entry.update, entry.generation), reverse=True)


def verify(path: Path | str) -> Rejected | None:
    """Read one checkpoint folder completely, as loading would; None when all is well. Nothing is changed."""
    path = Path(path).absolute()
    try:
        match = NAME.fullmatch(path.name)
        manifest = read_manifest(path)
        if match and int(match[1]) != manifest["update"]:
            raise CheckpointError(_misnamed(manifest))
        check_state(path, manifest)
        load_state(path / STATE)
    except LabkitError as error:
        return Rejected(path, error.found)
    return None


def _entry(path: Path, match: re.Match[str]) -> Entry:
    update, generation = int(match[1]), int(match[2] or 0)
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        return Entry(update, path, None, error.found, generation)
    if manifest["update"] != update:
        return Entry(update, path, None, _misnamed(manifest), generation)
    return Entry(update, path, manifest, None, generation)


def _misnamed(manifest: Manifest) -> str:
    return f"it holds update {manifest['update']} under another number: renamed or copied by hand"


def signature(path: Path) -> tuple[tuple[int, int, int], ...]:
    """Sizes, times and inodes: what changes when somebody touches a checkpoint. Empty when its files are not there."""
    try:
        stats = [(path / name).stat() for name in (STATE, MANIFEST)]
    except OSError:
        return ()
    return tuple((stat.st_size, stat.st_mtime_ns, stat.st_ino) for stat in stats)
