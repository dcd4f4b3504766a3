"""Opening the newest checkpoint that verifies, and saying why newer ones were passed over. Lesson 05."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from labkit.checkpoint.archive import STATE, Manifest, check_state, load_state
from labkit.checkpoint.entries import Entry, Found, Rejected, scan, signature, verify
from labkit.checkpoint.plain import plain
from labkit.errors import CheckpointError

# Named here because the class below has a method called list.
Entries: TypeAlias = list[Entry]
Rejects: TypeAlias = list[Rejected]


class CheckpointReader:
    """Read-only view of a folder of checkpoints. run_id: only checkpoints whose facts carry it are chosen."""

    def __init__(self, folder: Path | str, run_id: str | None = None) -> None:
        self.folder = Path(folder).absolute()  # a later chdir must not move it
        self.run_id = run_id
        self._verified: dict[Path, tuple[Any, ...]] = {}

    def list(self) -> Entries:
        """Every folder that bears a checkpoint's name, newest first. Manifests are read, states are not."""
        return scan(self.folder)

    def newest(self, usable: Callable[[Manifest], str | None] | None = None) -> Found:
        """The newest verified checkpoint of this run, and the newer ones that were passed over with the reasons.

        usable looks at a manifest and returns why it cannot be used, or None. Raises CheckpointError when none is left.
        """
        rejected: Rejects = []
        for entry in scan(self.folder):
            reason = (
                entry.reason or self._foreign(entry) or (usable(entry.manifest) if usable and entry.manifest else None)
            )
            if reason is None:
                try:
                    return self._open(entry, rejected)
                except CheckpointError as error:
                    reason = error.found
            rejected.append(Rejected(entry.path, reason))
        raise _none_usable(self.folder, rejected)

    def load(self, update: int) -> Found:
        """The verified checkpoint of one update. Raises CheckpointError with the reasons when there is none."""
        rejected: Rejects = []
        for entry in (entry for entry in scan(self.folder) if entry.update == update):
            try:
                if reason := entry.reason or self._foreign(entry):
                    raise CheckpointError(reason)
                return self._open(entry, rejected)
            except CheckpointError as error:
                rejected.append(Rejected(entry.path, error.found))
        raise _none_usable(self.folder, rejected, f" of update {update}")

    def verify(self, path: Path | str) -> Rejected | None:
        """Read one checkpoint folder completely, as loading would; None when all is well."""
        return verify(path)

    def _open(self, entry: Entry, rejected: Rejects) -> Found:
        assert entry.manifest is not None
        check_state(entry.path, entry.manifest)
        payload = plain(load_state(entry.path / STATE), copy=True)
        self._verified[entry.path] = signature(entry.path)
        return Found(entry.update, entry.path, payload, entry.manifest, rejected)

    def _foreign(self, entry: Entry) -> str | None:
        if self.run_id is None or entry.run_id == self.run_id:
            return None
        return f"it belongs to run {entry.run_id!r}, this is run {self.run_id!r}"


def _none_usable(folder: Path, rejected: Rejects, which: str = "") -> CheckpointError:
    reasons = "; ".join(f"{item.path.name}: {item.reason}" for item in rejected) or "there is none"
    return CheckpointError(
        f"no usable checkpoint{which} in {folder} ({reasons})", do="restore a copy, or start a new run"
    )
