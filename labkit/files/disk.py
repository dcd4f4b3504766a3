"""Every effect on the disk that a promise depends on: one small object that tests can watch, stop and break. Lesson 05.

A file is safe when three things reached the disk: its bytes (fsync of the file), its name (fsync of the folder), and
nothing that replaces it earlier (rename is the only commit).
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from labkit.errors import StorageError

OPERATIONS = (
    *("mkdir", "create", "open_append", "write", "fsync", "close"),
    *("fsync_folder", "rename", "replace", "remove", "rmdir"),
)
"""The methods of Files, one per effect. A test double overrides these and has then seen everything."""


class Files:
    """The disk. Handles are unbuffered, so a write is a write: nothing is left to flush."""

    def mkdir(self, path: Path) -> None:
        """Make one folder; its parent must exist."""
        os.mkdir(path)

    def create(self, path: Path) -> FileIO:
        """Open a file that does not exist yet."""
        return open(path, "xb", buffering=0)

    def open_append(self, path: Path) -> FileIO:
        """Open for writing at the end; made when missing."""
        return open(path, "ab", buffering=0)

    def write(self, handle: FileIO, data: bytes | memoryview) -> None:
        """Write all of data; the operating system may take it in parts."""
        view = memoryview(data).cast("B")
        while view:
            view = view[handle.write(view) :]

    def fsync(self, handle: FileIO) -> None:
        """The bytes of this file survive a power loss once this returns."""
        if sys.platform == "darwin":  # fsync there stops at the drive's own cache
            import fcntl

            with contextlib.suppress(OSError):
                fcntl.fcntl(handle.fileno(), fcntl.F_FULLFSYNC)
                return
        os.fsync(handle.fileno())

    def close(self, handle: FileIO) -> None:
        handle.close()

    def fsync_folder(self, path: Path) -> None:
        """The names in this folder survive a power loss. Windows cannot open a folder and gives no such promise."""
        if os.name == "nt":
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or folder a name that nothing bears yet."""
        os.rename(source, target)

    def replace(self, source: Path, target: Path) -> None:
        """Put a file in the place of another in one act; there is no moment without the name."""
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def rmdir(self, path: Path) -> None:
        os.rmdir(path)


DISK = Files()


def remove_tree(path: Path, files: Files = DISK) -> None:
    """Remove a file, or a folder and what is in it, one operation at a time; symbolic links are never followed."""
    if path.is_symlink() or not path.is_dir():
        files.remove(path)
        return
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        remove_tree(Path(entry.path), files)
    files.rmdir(path)


def write_text_durably(path: Path, text: str, files: Files = DISK) -> None:
    """Write a whole text file so that a crash leaves the old one or the new one, never a part. Raises StorageError."""
    temporary = path.with_name(f".tmp-{path.name}-{secrets.token_hex(4)}")
    with storage_errors(f"write {path}"):
        try:
            write_file(temporary, text.encode(), files)
            files.replace(temporary, path)
            files.fsync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                files.remove(temporary)
            raise


def write_file(path: Path, data: bytes, files: Files = DISK) -> None:
    """Write a new file and fsync it; its name is not yet durable."""
    handle = files.create(path)
    try:
        files.write(handle, data)
        files.fsync(handle)
    finally:
        files.close(handle)


def append_text(path: Path, text: str, files: Files = DISK, durable: bool = False) -> None:
    """Add text at the end of a file; durable also waits for the disk. Raises StorageError."""
    with storage_errors(f"append to {path}"):
        handle = files.open_append(path)
        try:
            files.write(handle, text.encode())
            if durable:
                files.fsync(handle)
        finally:
            files.close(handle)


def free_bytes(path: Path) -> int:
    """Bytes that this user may still write where path is or will be."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def file_size_limit() -> int | None:
    """The largest file that this process may write (ulimit -f), or None."""
    if os.name == "nt":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def is_regular(path: Path) -> bool:
    """A plain file itself: not a link to one, not a folder, pipe or device. False when it is missing."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


_REMEDY = {
    errno.ENOSPC: "free space on that disk, or choose another run folder",
    errno.EDQUOT: "your quota is used up: remove files of yours on that disk, or choose another run folder",
    errno.EFBIG: "raise the file size limit (ulimit -f), or choose another disk",
    errno.EROFS: "the disk is mounted read-only: choose another run folder",
    errno.EACCES: "give this user the right to write there, or choose another run folder",
    errno.EPERM: "give this user the right to write there, or choose another run folder",
    errno.ENOENT: "the folder vanished while the run was on: put it back, or choose another run folder",
    errno.EIO: "the disk reports a fault: choose another disk before you go on",
}


def storage_error(error: OSError, action: str, detail: str = "") -> StorageError:
    """The named error for a refusal of the disk: action, the system's reason, what to do."""
    reason = error.strerror or str(error)
    return StorageError(
        f"could not {action}: {reason}{detail}", do=_REMEDY.get(error.errno or 0, "see the reason given")
    )


@contextlib.contextmanager
def storage_errors(action: str) -> Iterator[None]:
    """Turn an OSError inside the block into a StorageError that says what was being done."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, action) from error
