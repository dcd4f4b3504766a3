"""Promises of the lessons' small helpers: set-up, source display, guesses, progress."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
import torch

from labkit import lab
from labkit.errors import ConfigError, LabkitError
from labkit.lab.guess import agrees
from labkit.lab.progress import Progress


def test_setup_prints_one_line_that_is_the_same_anywhere_and_may_be_called_twice(capsys):
    before = torch.get_num_threads()
    try:
        lab.setup(threads=1)
        lab.setup(threads=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert capsys.readouterr().out == "labkit is ready: 1 thread.\n" * 2


@pytest.mark.parametrize("threads", [0, -1, 1.5, True])
def test_setup_refuses_what_is_not_a_thread_count(threads):
    with pytest.raises(ConfigError, match="threads"):
        lab.setup(threads=threads)


def test_workspace_is_new_and_empty_at_each_call_k15_10():
    first, second = lab.workspace("a"), lab.workspace("a")
    assert first != second and first.is_dir() and not list(first.iterdir())


def test_workspace_goes_with_its_process_and_stays_when_asked_for(tmp_path):
    code = "from labkit import lab; print(lab.workspace())"
    env = {**os.environ, "LABKIT_WORKSPACE": ""}
    gone = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    ).stdout.strip()
    assert not os.path.exists(gone)
    env = {**os.environ, "LABKIT_WORKSPACE": str(tmp_path / "kept")}
    kept = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    ).stdout.strip()
    assert os.path.isdir(kept) and kept.startswith(str(tmp_path / "kept"))


def test_source_shows_the_real_function_with_its_page_and_without_a_machine_path():
    text = repr(lab.source(lab.guess))
    assert text.startswith("# labkit/lab/guess.py · guess\ndef guess(")
    assert os.getcwd() not in text and "agrees(mine, seen, within)" in text


def test_source_of_chosen_lines_counts_from_the_def_and_never_shows_more_than_thirty():
    def long() -> int:
        """First line.

        More.
        """
        a = 1
        return a

    assert '"""First line. ..."""' in repr(lab.source(long)) and "More." not in repr(lab.source(long))
    assert repr(lab.source(long, lines=(3, 4))).split("\n")[1:] == ["a = 1", "return a"]
    shown = repr(lab.source(subprocess.Popen)).split("\n")
    assert len(shown) == 32 and "more lines in" in shown[-1]
    with pytest.raises(LabkitError, match="at most 30"):
        lab.source(subprocess.Popen, lines=(1, 31))
    with pytest.raises(LabkitError, match="lines between 1 and"):
        lab.source(long, lines=(1, 99))
    with pytest.raises(LabkitError, match="no Python source"):
        lab.source(len)


def test_guess_reads_the_same_without_one_and_stands_beside_the_result_with_one(capsys):
    lab.guess(None, "B", {"B": "it stalls"})
    lab.guess("b", "B", {"B": "it stalls"})
    lab.guess(1, 2)
    lines = capsys.readouterr().out.split("\n")
    assert lines[0] == "Seen:        B (it stalls)" and lines[1].startswith("Your guess:  none.")
    assert lines[3].endswith("(as seen)") and lines[5].endswith("(not what happened)")


def test_guess_takes_a_number_within_a_part_of_what_was_seen_and_a_list_entry_by_entry():
    assert agrees(9, 10, within=0.1) and not agrees(8, 10, within=0.1)
    assert agrees(["a", 1], ["A", 1]) and not agrees(["a"], ["a", "b"])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_of_a_million_updates_leaves_one_line_k15_05():
    out = Terminal()
    with Progress(1_000_000, out=out, quiet=False, every=0.01) as progress:
        for done in range(0, 1_000_001, 10):
            progress.show(done, "validation 0.1")
    assert out.getvalue().count("\n") == 1 and "update 1000000 of 1000000" in out.getvalue()
    assert len(out.getvalue()) < 50_000


def test_progress_says_nothing_into_a_file_nor_where_nobody_watches():
    plain, quiet = io.StringIO(), Terminal()
    with Progress(3, out=plain, quiet=False) as a, Progress(3, out=quiet) as b:
        a.show(3)
        b.show(3)
    assert plain.getvalue() == "" and quiet.getvalue() == ""


def test_progress_ends_its_line_after_an_interrupt():
    out = Terminal()
    with pytest.raises(KeyboardInterrupt), Progress(3, out=out, quiet=False) as progress:
        progress.show(1)
        raise KeyboardInterrupt
    assert out.getvalue().endswith("\n")
