"""Nothing leaves the machine: processes in which any connection beyond loopback is refused and counted.

The guard is a sitecustomize.py that every Python process below imports first, children, workers and kernels included.
It counts what is tried, by connecting, by sending, and by asking for the address of a name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOY = f"{Path(__file__).with_name('toys.py')}:Toy"

GUARD = '''
import os, socket, sys

LOG = os.environ["NETWORK_LOG"]

def _note(kind, what):
    with open(LOG, "a") as file:
        file.write(f"{kind} {what!r}\\n")

_note("started", os.getpid())

def _host(address):
    return address[0] if isinstance(address, tuple) else None  # a path: a socket of this machine

def _near(host):
    return host is None or host in ("localhost", "::1", "") or str(host).startswith("127.")

def _guarded(name):
    original = getattr(socket.socket, name)
    def call(self, *arguments):
        address = arguments[-1] if name != "sendmsg" else (arguments[3] if len(arguments) > 3 else None)
        if not _near(_host(address)):
            _note("tried", (name, address))
            raise OSError("refused: nothing may leave this machine")
        return original(self, *arguments)
    return call

for _name in ("connect", "connect_ex", "sendto", "sendmsg"):
    setattr(socket.socket, _name, _guarded(_name))

_getaddrinfo = socket.getaddrinfo
def getaddrinfo(host, *rest, **more):
    name = host.decode() if isinstance(host, bytes) else host
    if not _near(name):
        _note("tried", ("getaddrinfo", name))
        raise socket.gaierror("refused: nothing may leave this machine")
    return _getaddrinfo(host, *rest, **more)
socket.getaddrinfo = getaddrinfo
socket.gethostbyname = lambda host: getaddrinfo(host, None)[0][4][0]
'''


class Guarded:
    """An environment for processes, and what they tried."""

    def __init__(self, folder: Path) -> None:
        guard = folder / "guard"
        guard.mkdir()
        (guard / "sitecustomize.py").write_text(GUARD)
        self.log = folder / "network.log"
        path = os.pathsep.join([str(guard), str(ROOT)])
        self.environment = {**os.environ, "PYTHONPATH": path, "NETWORK_LOG": str(self.log), "OMP_NUM_THREADS": "1"}
        self.folder = folder

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words], cwd=self.folder, env=self.environment, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=600,
        )  # fmt: skip

    def lines(self, kind: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.startswith(kind)]


@pytest.fixture
def guarded(tmp_path: Path) -> Guarded:
    return Guarded(tmp_path)


def test_train_and_resume_with_workers_try_no_connection(guarded: Guarded) -> None:
    code = (  # one process for both; the workers are processes of their own
        "from labkit import run\n"
        "if __name__ == '__main__':\n"
        f"    with run.start({TOY!r}, 'r', updates=4, eval_every=2, workers=1, tensorboard=False) as s: s.train()\n"
        "    with run.resume('r', updates=8, workers=0) as s: s.train()\n"
        "    from labkit.records import Ledger\n"
        "    Ledger('.').to_json()\n"
    )
    (guarded.folder / "both.py").write_text(code)
    done = guarded.python("both.py")
    assert done.returncode == 0, done.stderr
    assert guarded.lines("tried") == [] and len(guarded.lines("started")) >= 2  # the guard was in worker and parent


@pytest.mark.parametrize(
    "attempt",
    [
        "import urllib.request; urllib.request.urlopen('http://example.org', timeout=5)",
        "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)",
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
    ],
)
def test_the_guard_refuses_and_counts_what_would_leave(attempt: str, guarded: Guarded) -> None:
    done = guarded.python("-W", "ignore", "-c", attempt)
    assert done.returncode != 0 and "refused: nothing may leave this machine" in done.stderr
    assert len(guarded.lines("tried")) == 1


def test_loopback_is_let_through(guarded: Guarded) -> None:
    code = (
        "import socket\n"
        "with socket.create_server(('127.0.0.1', 0)) as server:\n"
        "    with socket.create_connection(server.getsockname()) as one: one.sendall(b'x')\n"
    )
    assert guarded.python("-c", code).returncode == 0 and guarded.lines("tried") == []


@pytest.mark.slow
def test_every_verb_that_works_with_runs_tries_no_connection(guarded: Guarded) -> None:
    for words in (
        ["train", "names", "--run", "runs/n", "--updates", "6", "--set", "eval_every=3", "samples_every=1"],
        ["resume", "runs/n", "--updates", "9"],
        ["export", "inference", "runs/n", "out"],
        ["predict", "out", "jo"],
        ["plan", TOY, "--updates", "9", "--sample", "0.1"],
        ["trials", TOY, "--vary", "rate=0.01,0.02", "--seeds", "1", "--budget", "updates=3"],
        ["prove", TOY, "--updates", "3", "--stops", "2"],
        ["review", str(ROOT / "labkit" / "plan")],
        ["doctor"],
    ):
        done = guarded.python("-m", "labkit", *words)
        assert done.returncode == 0, (words, done.stderr)
    assert guarded.lines("tried") == []


@pytest.mark.slow
def test_a_lesson_tries_no_connection(guarded: Guarded) -> None:
    lesson = ROOT / "notebooks" / "00_start_here.ipynb"
    if not lesson.is_file():
        pytest.skip("the lesson is not there yet")
    code = (
        "import sys, nbformat\nfrom nbclient import NotebookClient\n"
        "book = nbformat.read(sys.argv[1], as_version=4)\n"
        "NotebookClient(book, timeout=300, kernel_name='python3').execute()\n"
        "cells = [cell for cell in book.cells if cell.cell_type == 'code']\n"
        "assert cells and all(cell.execution_count for cell in cells)\n"
    )
    done = guarded.python("-W", "ignore", "-c", code, str(lesson))
    assert done.returncode == 0, done.stderr[-2000:]
    tried: list[Any] = guarded.lines("tried")
    assert tried == [] and len(guarded.lines("started")) >= 3, json.dumps(tried)  # this one, kernel, a fresh process
