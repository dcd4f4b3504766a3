"""The checkpoints of one run: published by one rename, believed only when verified, removed last. Lesson 05."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from labkit.checkpoint.archive import (
    FORMAT,
    KIND,
    MANIFEST,
    STATE,
    Manifest,
    check_state,
    load_state,
    read_manifest,
    write_manifest,
    write_state,
)
from labkit.checkpoint.entries import DEBRIS, Entry, Found, Published, Rejected, scan, signature, verify
from labkit.checkpoint.plain import Plan, all_finite, plain, plain_json
from labkit.checkpoint.space import Space, check_room, need
from labkit.errors import CheckpointError, ConfigError, StorageError
from labkit.files import DISK, Files, free_bytes, remove_tree, storage_errors

# Named here because the class below has a method called list.
Entries: TypeAlias = list[Entry]
Paths: TypeAlias = list[Path]
Rejects: TypeAlias = list[Rejected]
Updates: TypeAlias = list[int]


class CheckpointStore:
    """Checkpoints in one folder (run/checkpoints), whose parent must exist. One process at a time: hold files.lock.

    keep: the last so many healthy ones stay (at least 2); milestone_every: so does every update divisible by it.
    run_id: only checkpoints whose facts carry it are chosen, counted or removed; by default that of the first
    publication. Raises ConfigError for settings that would lose work.
    """

    def __init__(
        self,
        folder: Path | str,
        keep: int = 2,
        milestone_every: int | None = None,
        files: Files = DISK,
        run_id: str | None = None,
    ) -> None:
        if keep < 2:
            raise ConfigError(
                f"keep is {keep}",
                "2 or more: with one, a checkpoint that turns out damaged is the only one",
                "set keep=2",
            )
        if milestone_every is not None and milestone_every < 1:
            raise ConfigError(f"milestone_every is {milestone_every}", "1 or more, or None", "set it to None")
        self.folder = Path(folder).absolute()  # a later chdir must not move it
        self.keep, self.milestone_every, self.run_id = keep, milestone_every, run_id
        self._files = files
        self._busy = threading.RLock()
        self._active: set[str] = set()
        self._verified: dict[Path, tuple[Any, ...]] = {}
        self._last: int | None = None

    # --- publication -------------------------------------------------------------------------------------------------

    def publish(self, update: int, payload: Mapping[str, Any], facts: Mapping[str, Any]) -> Published:
        """Write, verify and commit a checkpoint; when this returns it survives a power loss.

        Raises CheckpointError for content that could not be loaded again (before anything is written) and StorageError
        when the disk refuses; then everything published before is as it was.
        """
        return self.publish_plain(update, plain(payload, copy=False), facts)

    def publish_plain(self, update: int, state: dict[str, Any], facts: Mapping[str, Any]) -> Published:
        """publish() for a state that plain() made."""
        if type(update) is not int or not 0 <= update < 10**18:
            raise CheckpointError(f"{update!r} as an update", "a whole number of updates, 0 or more", "pass an int")
        checked = plain_json(facts)
        with self._busy:
            check_room(self.folder, update, Plan(state))
            manifest: Manifest = {
                "format": FORMAT,
                "kind": KIND,
                "update": update,
                "healthy": all_finite(state.get("model", state)),
                "files": {},
                "facts": checked,
            }
            temporary = self.folder / f".tmp-update-{update:09d}-{secrets.token_hex(4)}"
            self._active.add(temporary.name)
            try:
                with storage_errors(f"publish update {update} in {self.folder}"):
                    self._write(temporary, state, manifest)
                    path = self._commit(temporary, update, checked.get("run_id"))
            except BaseException:
                self._discard(temporary)
                raise
            finally:
                self._active.discard(temporary.name)
            self.run_id = self.run_id or checked.get("run_id")
            self._last = update
            self._verified[path] = signature(path)
            return Published(update, path, manifest)

    def _write(self, temporary: Path, state: dict[str, Any], manifest: Manifest) -> None:
        files = self._files
        if not self.folder.is_dir():
            files.mkdir(self.folder)
            files.fsync_folder(self.folder.parent)
        files.mkdir(temporary)
        manifest["files"] = {STATE: write_state(temporary / STATE, state, files)}
        write_manifest(temporary / MANIFEST, manifest, files)
        files.fsync_folder(temporary)
        try:
            if read_manifest(temporary) != manifest:
                raise CheckpointError(f"{MANIFEST} reads back as another")
            check_state(temporary, manifest)
            load_state(temporary / STATE)
        except CheckpointError as error:
            raise StorageError(
                f"what was just written reads back wrong: {error.found}", do="choose another disk"
            ) from error

    def _commit(self, temporary: Path, update: int, run_id: Any) -> Path:
        """Give the folder its name: the one act that makes it a checkpoint. An older one of this update goes after."""
        files, plain_name = self._files, self.folder / f"update-{update:09d}"
        older = [entry for entry in scan(self.folder) if entry.update == update]
        if not older:
            files.rename(temporary, plain_name)
            files.fsync_folder(self.folder)
            return plain_name
        beside = self.folder / f"{plain_name.name}.{1 + max(entry.generation for entry in older)}"
        files.rename(temporary, beside)
        files.fsync_folder(self.folder)
        foreign = [entry.path for entry in older if entry.run_id not in (None, run_id)]
        for path in foreign:
            files.rename(path, self.folder / f"foreign-{path.name}-{secrets.token_hex(4)}")
        gone = self._uncommit([entry.path for entry in older if entry.path not in foreign])
        files.rename(beside, plain_name)
        files.fsync_folder(self.folder)
        for path in gone:
            remove_tree(path, files)
        return plain_name

    def _discard(self, temporary: Path) -> None:
        with contextlib.suppress(OSError):  # what cannot be removed now is swept at the next start
            if temporary.is_dir():
                remove_tree(temporary, self._files)

    # --- reading -----------------------------------------------------------------------------------------------------

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

    # --- retention ---------------------------------------------------------------------------------------------------

    def retain(self, best: int | None = None) -> Updates:
        """Remove what is no longer needed; returns the updates removed. Call it after a publication.

        Stays: the last `keep` healthy verified ones, the newest, the one just published, best, milestones, whatever is
        damaged or of another run. Nothing is removed unless a healthy verified one stays. Raises StorageError.
        """
        with self._busy, storage_errors(f"remove old checkpoints in {self.folder}"):
            mine = [
                entry
                for entry in scan(self.folder)
                if entry.manifest and not self._foreign(entry) and self._is_verified(entry)
            ]
            doubles = [
                entry for entry in mine if entry.update in {e.update for e in mine if e.generation > entry.generation}
            ]
            mine = [entry for entry in mine if entry not in doubles]
            healthy = [entry.update for entry in mine if entry.manifest and entry.manifest["healthy"]]
            stay = {*healthy[: self.keep], best, self._last, *(entry.update for entry in mine[:1])}
            stay |= {update for update in healthy if self.milestone_every and update % self.milestone_every == 0}
            leave = [entry for entry in mine if entry.update not in stay] if healthy else []
            gone = self._uncommit([entry.path for entry in leave + doubles])
            for path in gone:
                remove_tree(path, self._files)
            return sorted(entry.update for entry in leave)

    def sweep(self) -> Paths:
        """Remove what a dead writer left: unfinished, half removed. Only at the start of a run, under its lock."""
        with self._busy, storage_errors(f"clean up {self.folder}"):
            paths = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
            debris = [path for path in paths if DEBRIS.fullmatch(path.name) and path.name not in self._active]
            for path in debris:
                if path.is_dir() and not path.is_symlink():
                    remove_tree(path, self._files)
                else:
                    self._files.remove(path)
            return debris

    def _uncommit(self, paths: Paths) -> Paths:
        """Take the name of a checkpoint away, durably, before any of its files go."""
        gone = [self.folder / f".gone-{path.name}-{secrets.token_hex(4)}" for path in paths]
        for path, target in zip(paths, gone, strict=True):
            self._files.rename(path, target)
            self._verified.pop(path, None)
        if gone:
            self._files.fsync_folder(self.folder)
        return gone

    def _is_verified(self, entry: Entry) -> bool:
        """Verified once in this process and untouched since, or verified now."""
        if self._verified.get(entry.path) != signature(entry.path):
            if verify(entry.path) is not None:
                return False
            self._verified[entry.path] = signature(entry.path)
        return True

    # --- space -------------------------------------------------------------------------------------------------------

    def space(self, payload: Mapping[str, Any], milestones: int = 0) -> Space:
        """What checkpoints of this payload will need: keep, the best, so many milestones, and one being written."""
        one = need(Plan(payload))
        present = sum(
            file.stat().st_size for entry in scan(self.folder) for file in entry.path.iterdir() if file.is_file()
        )
        return Space(one, one * (self.keep + 2 + milestones), present, free_bytes(self.folder))


def _none_usable(folder: Path, rejected: Rejects, which: str = "") -> CheckpointError:
    reasons = "; ".join(f"{item.path.name}: {item.reason}" for item in rejected) or "there is none"
    return CheckpointError(
        f"no usable checkpoint{which} in {folder} ({reasons})", do="restore a copy, or start a new run"
    )
