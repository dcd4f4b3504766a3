"""An artefact on disk: a folder whose artefact.json says what it is for and what its files must hold. Lesson 09.

Published as a checkpoint is: written beside, fsynced, tried, then renamed. Nothing is used before its digests agree.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from labkit.errors import ExportError
from labkit.files import DISK, Files, file_sha256, is_regular, remove_tree, storage_error, write_file
from labkit.records.values import spell_nonfinite

FORMAT: Final = 1
ABOUT: Final = "artefact.json"
WEIGHTS: Final = "weights.safetensors"
_LARGEST_ABOUT: Final = 64 * 1024 * 1024

SAYS: Final = {
    "inference": "A complete model for use: weights, and what is needed to rebuild and use them. Training cannot go on "
    "from it: it holds no optimizer, schedule, cursor or random streams.",
    "adapter": "A low-rank change to named layers of one exact base. Useless without that base, wrong with another.",
    "merged": "A complete model for use, made by adding an adapter to its base. The change cannot be taken out again.",
}
_USE: Final = {
    "inference": "use it with `labkit predict`",
    "merged": "use it with `labkit predict`",
    "adapter": "load it on its base, or merge both with `labkit export merged`",
    "resume": "go on with `labkit resume`, or make an artefact of its run with `labkit export inference`",
}


@dataclass(frozen=True)
class Artefact:
    """A verified artefact: its folder and what its artefact.json says."""

    path: Path
    about: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """inference, adapter or merged."""
        return str(self.about["kind"])

    def __str__(self) -> str:
        about = self.about
        size = sum(record["size"] for record in about["files"].values())
        made = about["provenance"].get("run") or f"{about['provenance']['base']['name']} and an adapter"
        return (
            f"{self.path.name}: {self.kind} artefact of {made}, update {about['training']['committed']}: "
            f"{about['parameters']:,} parameters, {size:,} bytes. {about['says']}"
        )

    def tensors(self) -> dict[str, Tensor]:
        """The stored tensors by name, on the CPU. Raises ExportError when the file cannot be read."""
        try:
            return load_file(self.path / WEIGHTS)
        except (SafetensorError, OSError, ValueError) as error:
            raise ExportError(f"{WEIGHTS} cannot be read: {error}", "what was exported", _COPY) from error


_COPY = "export again, or take a copy that is whole"


def publish(
    target: Path | str,
    kind: str,
    about: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    extra: Mapping[str, bytes] | None = None,
    check: Callable[[Path], object] = lambda folder: None,
    files: Files = DISK,
) -> Artefact:
    """Write a new artefact folder; check(folder) tries it before it gets its name.

    Raises ExportError when the place is taken or the check fails, StorageError when the disk refuses; then nothing is
    left there.
    """
    target = Path(target).absolute()
    if target.exists() or target.is_symlink():
        raise ExportError(f"{target} is there already", "a new folder", "choose another name, or remove it yourself")
    contents = {WEIGHTS: _bytes(tensors, kind), **(extra or {})}
    described = {
        "format": FORMAT,
        "kind": kind,
        "says": SAYS[kind],
        **about,
        "files": {name: _record(data) for name, data in contents.items()},
    }
    temporary = target.with_name(f".tmp-{target.name}-{secrets.token_hex(4)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        files.mkdir(temporary)
        for name, data in contents.items():
            write_file(temporary / name, data, files)
        write_file(temporary / ABOUT, _text(described).encode(), files)
        files.fsync_folder(temporary)
        read(temporary, (kind,))
        check(temporary)
        files.rename(temporary, target)
        files.fsync_folder(target.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):  # what cannot be removed bears a name that nothing reads
            if temporary.is_dir():
                remove_tree(temporary, files)
        if isinstance(error, OSError):
            raise storage_error(error, f"export to {target}") from error
        raise
    return read(target, (kind,))


def read(folder: Path | str, kinds: Collection[str]) -> Artefact:
    """Open an artefact of one of these kinds after every size and digest was compared.

    Raises ExportError: not an artefact, of another kind (it says which, and what that is good for), damaged.
    """
    folder = Path(folder)
    about = _about(folder)
    kind = about.get("kind")
    if not isinstance(kind, str) or kind not in SAYS or about.get("format") != FORMAT:
        raise ExportError(
            f"{folder} is of kind {kind!r}, format {about.get('format')!r}",
            f"one of {', '.join(SAYS)}, format {FORMAT}",
            _USE.get(str(kind), "use the labkit that wrote it"),
        )
    if kind not in kinds:
        wanted = " or ".join(kinds)
        raise ExportError(f"{folder} is an artefact of kind {kind}. {SAYS[kind]}", f"kind {wanted}", _USE[kind])
    files = about.get("files")
    if not isinstance(files, dict) or WEIGHTS not in files:
        raise ExportError(f"{ABOUT} in {folder} lists no {WEIGHTS}", "what was exported", _COPY)
    for name, record in files.items():
        _check(folder, name, record)
    return Artefact(folder.absolute(), about)


def _about(folder: Path) -> dict[str, Any]:
    path = folder / ABOUT
    if not is_regular(path):
        if is_regular(folder / "manifest.json"):
            raise ExportError(f"{folder} is a checkpoint, an artefact of kind resume", "an export", _USE["resume"])
        if is_regular(folder / "config.json"):
            raise ExportError(f"{folder} is a run folder", "an export", "make one with `labkit export inference`")
        raise ExportError(f"{folder} holds no {ABOUT}", "a folder that `labkit export` made", "check the path")
    try:
        if path.stat().st_size > _LARGEST_ABOUT:
            raise ExportError(f"{ABOUT} in {folder} is larger than {_LARGEST_ABOUT} bytes", "a description", _COPY)
        about = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ExportError(f"{ABOUT} in {folder} cannot be read ({type(error).__name__})", "JSON", _COPY) from error
    if not isinstance(about, dict):
        raise ExportError(f"{ABOUT} in {folder} holds a {type(about).__name__}", "an object", _COPY)
    return about


def _check(folder: Path, name: str, record: Any) -> None:
    if name != Path(name).name or name in (".", "..") or not is_regular(folder / name):
        raise ExportError(f"{name!r} is no plain file in {folder}", "the files that were exported", _COPY)
    try:
        seen = file_sha256(folder / name)
    except OSError as error:
        raise ExportError(f"{name} in {folder} cannot be read ({error.strerror})", "a readable file", _COPY) from error
    size = (folder / name).stat().st_size
    if not isinstance(record, dict) or record.get("size") != size or record.get("sha256") != seen:
        raise ExportError(f"{name} in {folder} is not what was exported ({size} bytes, SHA-256 {seen})", "", _COPY)


def _bytes(tensors: Mapping[str, Tensor], kind: str) -> bytes:
    try:
        return save(dict(tensors), {"format": "pt", "labkit": kind})
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise ExportError(f"the tensors cannot be written as safetensors: {error}", "dense tensors", "") from error


def _record(data: bytes) -> dict[str, Any]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _text(described: Mapping[str, Any]) -> str:
    try:
        return json.dumps(spell_nonfinite(described), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ExportError(f"the description cannot be written as JSON: {error}", "plain values", "") from error
