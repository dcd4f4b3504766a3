"""The checkpoints of one run: published by one rename, believed only when verified, removed last. Lesson 05."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
from labkit.checkpoint.entries import DEBRIS, Entry, Published, scan, signature, verify
from labkit.checkpoint.plain import Plan, all_finite, plain, plain_json
from labkit.checkpoint.reader import CheckpointReader
from labkit.checkpoint.space import Space, check_room, need
from labkit.errors import CheckpointError, ConfigError, StorageError
from labkit.files import DISK, Files, free_bytes, remove_tree, storage_error, storage_errors


class CheckpointStore(CheckpointReader):
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
        super().__init__(folder, run_id)
        self.keep, self.milestone_every = keep, milestone_every
        self._files = files
        self._busy = threading.RLock()
        self._active: set[str] = set()
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
            size = check_room(self.folder, update, Plan(state))
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
                self._write(temporary, state, manifest)
                path = self._commit(temporary, update, checked.get("run_id"))
            except OSError as error:
                detail = _shortfall(temporary, size)
                self._discard(temporary)
                raise storage_error(error, f"publish update {update} in {self.folder}", detail) from error
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
            self._set_aside(path)
        gone = self._uncommit([entry.path for entry in older if entry.path not in foreign])
        files.rename(beside, plain_name)
        self._remove(gone)
        return plain_name

    def _discard(self, temporary: Path) -> None:
        with contextlib.suppress(OSError):  # what cannot be removed now is swept at the next start
            if temporary.is_dir():
                remove_tree(temporary, self._files)

    # --- retention ---------------------------------------------------------------------------------------------------

    def retain(self, best: int | None = None, pinned: int | None = None) -> list[int]:
        """Remove what is no longer needed; returns the updates removed. Call it after a publication.

        Stays: the last `keep` healthy verified ones, the newest, the one just published, best, pinned, milestones,
        whatever is damaged or of another run. Nothing is removed unless a healthy verified one stays. Raises
        StorageError.
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
            stay = {*healthy[: self.keep], best, pinned, self._last, *(entry.update for entry in mine[:1])}
            stay |= {update for update in healthy if self.milestone_every and update % self.milestone_every == 0}
            leave = [entry for entry in mine if entry.update not in stay] if healthy else []
            if leave or doubles:
                self._remove(self._uncommit([entry.path for entry in leave + doubles]))
            return sorted(entry.update for entry in leave)

    def sweep(self) -> list[Path]:
        """Remove what a dead writer left: unfinished, half removed. Only at the start of a run, under its lock."""
        with self._busy, storage_errors(f"clean up {self.folder}"):
            paths = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
            debris = [path for path in paths if DEBRIS.fullmatch(path.name) and path.name not in self._active]
            for path in debris:
                remove_tree(path, self._files)
            return debris

    def set_aside_after(self, update: int) -> list[Path]:
        """Rename this run's checkpoints above an update, when it goes on from there: they are another future now.

        They are kept, under names that are neither chosen nor counted nor removed. Raises StorageError.
        """
        with self._busy, storage_errors(f"set checkpoints in {self.folder} aside"):
            later = [entry.path for entry in scan(self.folder) if entry.update > update and not self._foreign(entry)]
            aside = [self._set_aside(path) for path in later]
            self._files.fsync_folder(self.folder)
            return aside

    def _set_aside(self, path: Path) -> Path:
        target = self.folder / f"aside-{path.name}-{secrets.token_hex(4)}"
        self._files.rename(path, target)
        return target

    def _uncommit(self, paths: list[Path]) -> list[Path]:
        """Take the name of a checkpoint away before any of its files go."""
        gone = [self.folder / f".gone-{path.name}-{secrets.token_hex(4)}" for path in paths]
        for path, target in zip(paths, gone, strict=True):
            self._files.rename(path, target)
            self._verified.pop(path, None)
        return gone

    def _remove(self, gone: list[Path]) -> None:
        """Remove what has no name any more, once the disk knows that it has none."""
        self._files.fsync_folder(self.folder)
        for path in gone:
            remove_tree(path, self._files)

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
            sum(record["size"] for record in entry.manifest["files"].values())
            for entry in scan(self.folder)
            if entry.manifest
        )
        return Space(one, one * (self.keep + 2 + milestones), present, free_bytes(self.folder))


def _shortfall(temporary: Path, size: int) -> str:
    with contextlib.suppress(OSError):
        written = (temporary / STATE).stat().st_size
        return f" after {written} of about {size} bytes, {size - written} missing"
    return ""
