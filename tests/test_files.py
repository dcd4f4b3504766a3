"""Durable files: whole or not at all, digests of what lies on the disk, one process per run folder."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import RunFolderError, RunLockedError, StorageError
from labkit.files import (
    DISK,
    OPERATIONS,
    PIECE,
    Files,
    HashingWriter,
    append_text,
    file_digests,
    file_size_limit,
    free_bytes,
    hashing,
    is_regular,
    lock,
    remove_tree,
    spread,
    storage_error,
    write_text_durably,
)

ROOT = str(Path(__file__).resolve().parent.parent)


def test_the_list_of_operations_is_every_method_of_the_file_layer() -> None:
    assert set(OPERATIONS) == {name for name in vars(Files) if not name.startswith("_")}


class Failing(Files):
    """Counts operations and raises before number `point`."""

    def __init__(self, point: int, error: BaseException) -> None:
        self.point, self.error, self.count = point, error, 0


def _failing(name: str) -> Callable[..., Any]:
    def operation(self: Failing, *arguments: Any) -> Any:
        self.count += 1
        if self.count == self.point:
            if name == "close":
                arguments[0].close()
            raise self.error
        return getattr(Files, name)(self, *arguments)

    return operation


for _name in OPERATIONS:
    setattr(Failing, _name, _failing(_name))


# --- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_text_file_is_the_old_one_or_the_new_one_after_any_failure(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "größe 数据.json"
    for point in range(1, 100):
        path.write_text("old")
        files = Failing(point, error)
        try:
            write_text_durably(path, "new", files)
        except StorageError as named:
            assert "No space left" in str(named) and str(path) in str(named) and "free space" in named.do
        except KeyboardInterrupt:
            pass
        assert path.read_text() in ("old", "new") and os.listdir(tmp_path) == [path.name]
        if files.count < point:
            break
    assert 5 < point < 20 and path.read_text() == "new"


def test_appending_adds_at_the_end_and_names_what_failed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append_text(path, "ä\n")
    append_text(path, "b\n", durable=True)
    assert path.read_text() == "ä\nb\n"
    with pytest.raises(StorageError, match="append to"):
        append_text(tmp_path / "missing" / "log", "x")


def test_every_refusal_of_the_disk_says_what_to_do() -> None:
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.ENOENT, errno.EIO, 9999):
        error = storage_error(OSError(code, os.strerror(code)), "write it", ", 5 bytes missing")
        assert error.found == f"could not write it: {os.strerror(code)}, 5 bytes missing" and error.do


# --- trees and looks -------------------------------------------------------------------------------------------------


def test_removing_a_tree_never_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    (tree / "inner" / "file").write_text("x")
    (tree / "link").symlink_to(tmp_path / "kept")
    (tree / "inner" / "nowhere").symlink_to(tmp_path / "nothing")
    remove_tree(tree)
    assert os.listdir(tmp_path) == ["kept"] and (tmp_path / "kept" / "file").exists()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "link")
    remove_tree(tmp_path / "kept" / "file")
    assert os.listdir(tmp_path) == ["kept"]


def test_only_a_file_itself_is_a_regular_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert is_regular(tmp_path / "file")
    assert not any(is_regular(tmp_path / name) for name in ("link", "missing", "", "file/below"))


def test_free_space_is_known_for_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "a" / "b") > 0


def test_a_file_size_limit_is_seen() -> None:
    pytest.importorskip("resource", reason="file size limits are a POSIX thing")
    code = (
        "import resource; from labkit.files import file_size_limit; print(file_size_limit())\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (12345, resource.RLIM_INFINITY)); print(file_size_limit())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ROOT}
    )
    assert done.stdout.split() == [str(file_size_limit()), "12345"]


def test_a_write_that_the_system_takes_in_parts_is_completed(tmp_path: Path) -> None:
    class Dribble:
        def __init__(self) -> None:
            self.data = b""

        def write(self, view: memoryview) -> int:
            self.data += bytes(view[:3])
            return min(3, len(view))

    handle: Any = Dribble()
    DISK.write(handle, b"abcdefgh")
    assert handle.data == b"abcdefgh"


# --- digests ---------------------------------------------------------------------------------------------------------


def _pieces(data: bytes, piece: int) -> list[str]:
    return [hashlib.sha256(data[start : start + piece]).hexdigest() for start in range(0, max(len(data), 1), piece)]


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 2000, 2999, 3000])
def test_digests_while_writing_and_after_reading_agree_at_every_length(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "PIECE", 1000)
    data = os.urandom(size)
    handle = DISK.create(tmp_path / "file")
    writer = HashingWriter(DISK, handle)
    for start in range(0, size, 7):
        assert writer.write(data[start : start + 7]) == len(data[start : start + 7])
    writer.flush()
    writer.finish()
    DISK.close(handle)
    assert (tmp_path / "file").read_bytes() == data and writer.size == size
    assert writer.digests() == file_digests(tmp_path / "file", size) == _pieces(data, 1000)


def test_small_and_large_writes_keep_their_order(tmp_path: Path) -> None:
    parts = [b"a", os.urandom(3 << 20), b"b" * 1000, b"c" * (1 << 20), b"", os.urandom(PIECE + 5), b"d"]
    handle = DISK.create(tmp_path / "file")
    writer = HashingWriter(DISK, handle)
    for part in parts:
        writer.write(memoryview(part))
    writer.finish()
    DISK.close(handle)
    data = b"".join(parts)
    assert (tmp_path / "file").read_bytes() == data
    assert writer.digests() == _pieces(data, PIECE) == file_digests(tmp_path / "file", len(data))


@pytest.mark.parametrize("size", [10, 3 << 20])
def test_a_failed_write_is_kept_until_the_end_and_then_raised(size: int, tmp_path: Path) -> None:
    files = Failing(2, OSError(errno.ENOSPC, "No space left on device"))
    handle = files.create(tmp_path / "file")
    writer = HashingWriter(files, handle)
    for _ in range(3):
        assert writer.write(b"x" * size) == size  # torch must not see it: it would raise an error of its own
    with pytest.raises(OSError, match="No space left"):
        writer.finish()
    assert files.count == 2  # nothing was written after the failure
    handle.close()


def test_spreading_keeps_order_and_raises_what_the_work_raised() -> None:
    assert spread(lambda number: number * 2, range(20)) == [number * 2 for number in range(20)]
    assert spread(lambda number: number, []) == []
    with pytest.raises(RuntimeError, match="mine"):
        spread(_raises, [1, 2])


def _raises(number: int) -> None:
    raise RuntimeError("mine")


# --- lock ------------------------------------------------------------------------------------------------------------

_HOLD = """
import os, sys, time
from pathlib import Path
from labkit.files import lock
with lock(Path(sys.argv[1])):
    if sys.argv[2] == "fork" and os.fork() == 0:
        time.sleep(30)
        os._exit(0)
    print("held", flush=True)
    time.sleep(60)
"""


def _holder(folder: Path, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _HOLD, str(folder), how]
    environment = {**os.environ, "PYTHONPATH": ROOT}
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    return holder


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_K08_11_a_second_process_is_told_who_holds_the_folder_and_a_dead_holder_holds_nothing(
    how: str, tmp_path: Path
) -> None:
    if how == "fork" and not hasattr(os, "fork"):
        pytest.skip("forked workers are a POSIX thing")
    holder = _holder(tmp_path, how)
    try:
        start = time.monotonic()
        with pytest.raises(RunLockedError, match=rf"process {holder.pid} on \S+ since 20"), lock(tmp_path):
            pass
        assert time.monotonic() - start < 5
        holder.kill()
        holder.wait()
        with lock(tmp_path):  # also while a worker that it forked lives on
            assert json.loads((tmp_path / "lock.holder").read_text())["pid"] == os.getpid()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
        assert holder.stdout is not None
        holder.stdout.close()


def test_the_lock_is_given_back_also_after_an_exception(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), lock(tmp_path):
            raise ZeroDivisionError
    assert not (tmp_path / "lock.holder").exists()


def test_the_same_process_cannot_hold_a_folder_twice(tmp_path: Path) -> None:
    with lock(tmp_path):
        with pytest.raises(RunLockedError, match=f"process {os.getpid()}"), lock(tmp_path):
            pass
        with pytest.raises(RunLockedError), lock(tmp_path):
            pass


def test_a_missing_folder_is_not_locked(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not a folder"), lock(tmp_path / "missing"):
        pass
