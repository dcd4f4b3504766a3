"""Fresh processes: they find what this one finds, read nothing, and are not reached by its Ctrl-C."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import labkit.errors
from labkit import processes


def test_a_fresh_process_finds_labkit_and_the_users_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_only.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path.parent)
    done = processes.run("-P", "-c", "import labkit.errors, mine_only; print(labkit.errors.__file__, mine_only.answer)")
    assert (done.returncode, done.stdout) == (0, f"{labkit.errors.__file__} 42\n"), done.stderr


@pytest.mark.skipif(os.name != "posix", reason="sessions are a notion of POSIX")
def test_it_leads_a_session_of_its_own_and_has_nothing_to_read() -> None:
    with processes.begin("-c", "import os, sys; print(os.getsid(0) == os.getpid(), repr(sys.stdin.read()))") as process:
        said, errors = process.communicate(timeout=60)
    assert (said, errors, process.returncode) == ("True ''\n", "", 0)


def test_last_words_are_the_last_line_or_the_status() -> None:
    done = processes.run("-c", "import sys; sys.stderr.write('Traceback\\nValueError: here\\n\\n'); sys.exit(3)")
    assert processes.last_words(done.stderr, done.returncode) == "ValueError: here"
    assert processes.last_words(" \n", -9) == "status -9"
