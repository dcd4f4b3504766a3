"""Which code ran: git commit and the whole patch of uncommitted changes. Lesson 10."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

_CODE = frozenset(
    ".py .pyi .pyx .ipynb .toml .cfg .ini .yaml .yml .sh .c .cc .cpp .cu .cuh .h .hpp .rs .ps1 .bat".split()
)
_DIFF = (
    "diff",
    "--binary",
    "--full-index",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--no-renames",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)
_SECONDS = 30.0


def git_state(place: Path) -> dict[str, Any]:
    """Commit, branch and patch of the repository around a file or folder; {"unreadable": why} without one.

    The patch holds every change to tracked files, binary ones too, and every new code file that git does not ignore:
    `git apply` on the commit gives the code that ran. Other new files (data, results) are named and not copied, because
    they may be large or private. Nothing is written to the repository. Bytes that are not UTF-8 are kept as surrogates.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="labkit-") as scratch:
            return _state(_top(place), Path(scratch) / "index")
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", b"") or b""
        reason = detail.decode(errors="replace").strip() or str(error)
        return {"unreadable": f"{type(error).__name__}: {reason}"}


def _state(top: Path, index: Path) -> dict[str, Any]:
    own = top / os.fsdecode(_git(top, "rev-parse", "--git-path", "index").rstrip(b"\n"))
    if own.is_file():
        shutil.copy(own, index)  # git rewrites the index that it reads, and a commit at this moment would meet its lock
    commit = _git(top, "rev-parse", "--verify", "--quiet", "HEAD", accept=(0, 1)).decode().strip() or None
    base = commit or _git(top, "hash-object", "-t", "tree", os.devnull).decode().strip()
    listed = _git(top, "ls-files", "-z", "--others", "--exclude-standard", index=index).split(b"\0")
    new = [os.fsdecode(name) for name in listed if name]
    code = [name for name in new if Path(name).suffix.lower() in _CODE]
    patch = _git(top, *_DIFF, base, index=index) + b"".join(
        _git(top, *_DIFF, "--no-index", "--", os.devnull, name, accept=(0, 1)) for name in code
    )
    left = sorted(set(new) - set(code))
    return {
        "commit": commit,
        "branch": _git(top, "rev-parse", "--abbrev-ref", "HEAD", accept=(0, 128)).decode(errors="replace").strip(),
        "changed": bool(patch),
        "patch": patch.decode(errors="surrogateescape"),
        "new_files_not_stored": {"count": len(left), "first": left[:20]},
    }


def git_top(place: Path) -> Path | None:
    """The top folder of the repository around a file or folder; None without a repository or without git."""
    try:
        return _top(place)
    except (OSError, subprocess.SubprocessError):
        return None


def _top(place: Path) -> Path:
    said = _git(place if place.is_dir() else place.parent, "rev-parse", "--show-toplevel")
    return Path(os.fsdecode(said.rstrip(b"\n")))


def _git(folder: Path, *words: str, accept: tuple[int, ...] = (0,), index: Path | None = None) -> bytes:
    """Run git where nothing can ask, page, lock or redirect it to another repository."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    clean |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"} | ({"GIT_INDEX_FILE": str(index)} if index else {})
    done = subprocess.run(
        ["git", "-c", "core.fsmonitor=false", *words],
        cwd=folder,
        env=clean,
        timeout=_SECONDS,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    if done.returncode not in accept:
        raise subprocess.CalledProcessError(done.returncode, ["git", *words], done.stdout, done.stderr)
    return done.stdout
