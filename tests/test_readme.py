"""README.md says what is true: its tables, its file tree, its twenty lines of code."""

from __future__ import annotations

import re
import subprocess
import sys

import front_page
import pytest

TEXT = front_page.README.read_text(encoding="utf-8")


@pytest.mark.parametrize("mark", front_page.MARKS)
def test_tables_are_those_of_the_lessons(mark):
    assert front_page.between(TEXT, mark) == front_page.MARKS[mark](), "run: python tests/front_page.py"


def test_every_lesson_has_a_recap_and_a_place_in_the_map():
    for path in front_page.LESSONS:
        assert len(front_page.recap(path)) >= 2, path.name
        assert f"notebooks/{path.name}" in front_page.between(TEXT, "lesson map")


def tree() -> list[str]:
    """Paths of the file tree, those inside labkit with their folder."""
    lines = front_page.between(TEXT, "file tree").strip("`\n").splitlines()
    return [("labkit/" if line.startswith("  ") else "") + line.split()[0] for line in lines]


def test_the_file_tree_is_the_folder():
    named = {path.rstrip("/") for path in tree()}
    missing = {path for path in named if not (front_page.ROOT / path).exists()}
    assert not missing
    pages = {
        f"labkit/{path.name}"
        for path in (front_page.ROOT / "labkit").iterdir()
        if path.suffix == ".py" or (path.is_dir() and (path / "__init__.py").exists())
    } - {"labkit/__init__.py"}
    assert pages <= named, pages - named


def test_every_line_of_the_tree_has_a_remark():
    lines = front_page.between(TEXT, "file tree").strip("`\n").splitlines()
    assert [line for line in lines if len(line.split()) < 2 and line != "labkit/"] == []


def test_the_example_is_short_and_resumes_exactly(tmp_path):
    code = re.search(r"```python\n(# mine\.py\n.*?)```", TEXT, re.DOTALL)
    assert code is not None
    assert sum(1 for line in code[1].splitlines() if line.strip()) <= 30
    (tmp_path / "mine.py").write_text(code[1])
    command = [sys.executable, "-m", "labkit", "prove", "mine.py:Circles", "--updates", "3", "--stops", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "EXACT: 1 of 1 stops" in done.stdout


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        if "://" not in target:
            assert (front_page.ROOT / target).exists(), target
