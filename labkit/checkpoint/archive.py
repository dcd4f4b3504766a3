"""One checkpoint folder: state.pt (what torch.save writes) and manifest.json (what it must look like). Lesson 05.

Nothing is believed before its digest is: the manifest carries its own, and the state's. Loading is always restricted.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import torch

from labkit.checkpoint.plain import Plan
from labkit.errors import CheckpointError
from labkit.files import DISK, PIECE, Files, HashingWriter, file_digests, is_regular, write_file

STATE, MANIFEST = "state.pt", "manifest.json"
FORMAT, KIND = 1, "resume"
_MANIFEST_LIMIT = 16 * 1024 * 1024
_PROTOCOL = b"\x80\x02"  # how a pickle of protocol 2 begins
_DIGEST = re.compile(r"[0-9a-f]{64}")
_RECORD = re.compile(
    r"archive/(data\.pkl|version|byteorder|\.format_version|\.storage_alignment|data/\d+|\.data/serialization_id)"
)

Manifest = dict[str, Any]


def write_state(path: Path, state: Mapping[str, Any], files: Files = DISK) -> dict[str, Any]:
    """torch.save a plain state into a new file, hashed on the way and fsynced. Returns its size and digests.

    Raises OSError as the disk gave it. Equal states give equal bytes.
    """
    handle = files.create(path)
    try:
        writer = HashingWriter(files, handle)
        try:
            torch.save(state, cast(IO[bytes], writer), pickle_protocol=2)
        except RuntimeError as error:
            if isinstance(error.__context__, KeyboardInterrupt):  # torch, closing what that cut short, complains
                raise error.__context__ from None
            raise
        finally:
            writer.finish()
        files.fsync(handle)
    finally:
        files.close(handle)
    return {"size": writer.size, "piece": PIECE, "sha256": writer.digests()}


def write_manifest(path: Path, manifest: Manifest, files: Files = DISK) -> None:
    """Write a manifest with its own digest in front, fsynced."""
    write_file(path, _signed(manifest), files)


def _text(value: Any) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def _signed(manifest: Manifest) -> bytes:
    digest = hashlib.sha256(_text(manifest).encode()).hexdigest()
    return _text({"sha256": digest, **manifest}).encode()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint folder, every field checked. Raises CheckpointError with the reason alone."""
    path = folder / MANIFEST
    if folder.is_symlink():
        raise CheckpointError("it is a symbolic link, and nothing outside the folder is read")
    data = _read(path)
    try:
        signed = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{MANIFEST} is not JSON: {error}") from error
    if not isinstance(signed, dict) or not isinstance(signed.get("sha256"), str):
        raise CheckpointError(f"{MANIFEST} carries no digest of its own")
    manifest = {name: value for name, value in signed.items() if name != "sha256"}
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{MANIFEST} has format {manifest.get('format')!r}, this labkit reads {FORMAT}")
    try:
        agrees = _signed(manifest) == data
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{MANIFEST} holds values that no manifest has: {error}") from error
    if not agrees:
        raise CheckpointError(f"{MANIFEST} does not match its own digest")
    _check_fields(manifest)
    return manifest


def _read(path: Path) -> bytes:
    if not is_regular(path):
        raise CheckpointError(f"{path.name} is missing or not a plain file")
    try:
        with open(path, "rb") as handle:
            data = handle.read(_MANIFEST_LIMIT + 1)
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}") from error
    if len(data) > _MANIFEST_LIMIT:
        raise CheckpointError(f"{path.name} is longer than {_MANIFEST_LIMIT} bytes")
    return data


def _check_fields(manifest: Manifest) -> None:
    update, files, facts = manifest.get("update"), manifest.get("files"), manifest.get("facts")
    if manifest.get("kind") != KIND:
        raise CheckpointError(f"{MANIFEST} is of kind {manifest.get('kind')!r}, not {KIND!r}")
    if type(update) is not int or update < 0:
        raise CheckpointError(f"{MANIFEST} has {update!r} as its update")
    if type(manifest.get("healthy")) is not bool or not isinstance(facts, dict):
        raise CheckpointError(f"{MANIFEST} lacks healthy or facts")
    if not isinstance(files, dict) or set(files) != {STATE} or not isinstance(files[STATE], dict):
        raise CheckpointError(f"{MANIFEST} does not list {STATE} and nothing else")
    record = files[STATE]
    size, digests = record.get("size"), record.get("sha256")
    pieces = max(1, -(-size // PIECE)) if type(size) is int and size >= 0 else 0
    if record.get("piece") != PIECE or not isinstance(digests, list) or len(digests) != pieces or not pieces:
        raise CheckpointError(f"{MANIFEST} has sizes and digests that do not belong together")
    if not all(isinstance(digest, str) and _DIGEST.fullmatch(digest) for digest in digests):
        raise CheckpointError(f"{MANIFEST} has a digest that is none")


def check_state(folder: Path, manifest: Manifest) -> None:
    """Compare size and digests of state.pt with the manifest. Raises CheckpointError with the reason alone."""
    path, record = folder / STATE, manifest["files"][STATE]
    if not is_regular(path):
        raise CheckpointError(f"{STATE} is missing or not a plain file")
    try:
        size = path.stat().st_size
        if size != record["size"]:
            raise CheckpointError(f"{STATE} has {size} bytes, its manifest says {record['size']}")
        digests = file_digests(path, size)
    except OSError as error:
        raise CheckpointError(f"{STATE} cannot be read: {error.strerror}") from error
    wrong = [number for number, (a, b) in enumerate(zip(digests, record["sha256"], strict=True)) if a != b]
    if wrong:
        raise CheckpointError(f"{STATE} does not match its digest in piece {wrong[0]} of {len(digests)}")


def load_state(path: Path) -> dict[str, Any]:
    """Restricted load of a state file onto the CPU, its tensors still mapped from the file: copy them before use.

    Only archives as torch.save writes them are opened, and only plain content is returned. Raises CheckpointError.
    """
    _check_archive(path)
    try:
        if _mappable(path):
            state = torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)
        else:
            with open(path, "rb") as handle:
                state = torch.load(handle, map_location="cpu", weights_only=True)
        Plan(state)
    except CheckpointError as error:
        raise CheckpointError(f"{path.name} holds more than plain content: {error.found}") from error
    except MemoryError as error:
        raise CheckpointError(f"{path.name} does not fit into memory") from error
    except Exception as error:  # torch raises whatever the damaged bytes lead it to
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise CheckpointError(f"{path.name} is refused by restricted loading: {reason}") from error
    assert isinstance(state, dict)
    return state


def _mappable(path: Path) -> bool:
    """Mapping goes through torch's own opening of the name; elsewhere we open the file and hand over the handle."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return os.name == "posix"


def _check_archive(path: Path) -> None:
    """Stored, not compressed (no file can grow in memory), with the record names of torch.save and nothing else."""
    try:
        size = path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            for entry in entries:
                _check_record(path, entry, size)
            pickled = archive.read("archive/data.pkl")
    except CheckpointError:
        raise
    except Exception as error:  # zipfile has several errors for damaged directories
        raise CheckpointError(f"{path.name} is not an archive as torch.save writes it: {error}") from error
    if not pickled.startswith(_PROTOCOL):
        raise CheckpointError(f"{path.name} has another pickle protocol than torch.save writes")
    if len({entry.filename for entry in entries}) != len(entries):
        raise CheckpointError(f"{path.name} has two records of one name")


def _check_record(path: Path, entry: zipfile.ZipInfo, size: int) -> None:
    stored = entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size
    if not stored or not _RECORD.fullmatch(entry.filename) or entry.header_offset + entry.file_size > size:
        raise CheckpointError(f"{path.name} has a record that torch.save does not write: {entry.filename[:80]!r}")
