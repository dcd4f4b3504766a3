"""Reviewing a script: each rule finds what it should and nothing else; nothing is run; odd files end in words."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import labkit
from labkit.errors import ReviewError
from labkit.review import RULES, Report, render, review, run, to_json

FIXTURES = Path(__file__).parent / "review_fixtures"
PYTHON_RULES = sorted(RULES.keys() - {"unread", "allow", "unpinned-requirement"})


def fixture(rule: str, kind: str) -> Path:
    return FIXTURES / f"{rule.replace('-', '_')}_{kind}.py"


def expected(path: Path, rule: str) -> Counter[tuple[int, str, str]]:
    """The marks `# expect: [RULE] SEVERITY, ...` of a fixture as (line, rule, severity)."""
    marks: Counter[tuple[int, str, str]] = Counter()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for mark in line.partition("# expect: ")[2].split(","):
            words = mark.split()
            if words:
                marks[number, words[0] if len(words) == 2 else rule, words[-1]] += 1
    return marks


def found(report: Report) -> Counter[tuple[int, str, str]]:
    return Counter((f.line, f.rule, f.severity) for f in report.findings)


def rules(report: Report) -> list[str]:
    return [f.rule for f in report.findings]


def script(folder: Path, text: str, name: str = "script.py") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def notebook(folder: Path, *cells: str, name: str = "book.ipynb") -> Path:
    book = {"cells": [{"cell_type": "code", "source": cell} for cell in cells], "metadata": {}, "nbformat": 4}
    return script(folder, json.dumps(book), name)


@pytest.mark.parametrize("rule", PYTHON_RULES)
def test_every_rule_finds_exactly_the_marked_lines_of_its_dirty_fixture(rule: str) -> None:
    path = fixture(rule, "dirty")
    marks = expected(path, rule)
    assert any(r == rule for _, r, _ in marks)
    assert found(review(path)) == marks


@pytest.mark.parametrize("rule", PYTHON_RULES)
def test_every_rule_is_silent_on_its_clean_fixture(rule: str) -> None:
    report = review(fixture(rule, "clean"))
    assert report.findings == () and report.unread == ()


def test_notebook_magics_and_shell_lines_are_found_with_their_cell() -> None:
    path = FIXTURES / "notebook_dirty.ipynb"
    marks: Counter[tuple[int, int, str, str]] = Counter({(2, 2, "install", "high"): 1})  # the one over two lines
    for number, cell in enumerate(json.loads(path.read_text())["cells"], 1):
        for line, text in enumerate("".join(cell["source"]).splitlines(), 1):
            for mark in text.partition("# expect: ")[2].split(","):
                if mark.split():
                    rule, severity = mark.split()
                    marks[number, line, rule, severity] += 1
    report = review(path)
    assert Counter((f.cell, f.line, f.rule, f.severity) for f in report.findings) == marks
    assert [(a.finding.cell, a.reason) for a in report.allowed] == []
    assert report.unread == ()


def test_lines_after_a_command_over_several_lines_keep_their_number(tmp_path: Path) -> None:
    report = review(notebook(tmp_path, "!echo a \\\n  b \\\n  c\n!rm a", "%%bash\necho a \\\n  b\nrm a"))
    assert [(f.cell, f.line, f.rule) for f in report.findings] == [(1, 4, "delete"), (2, 4, "delete")]


def test_a_clean_notebook_gives_nothing_and_says_which_setting_kept_the_tracker_still() -> None:
    report = review(FIXTURES / "notebook_clean.ipynb")
    assert report.findings == () and report.unread == ()
    assert [a.reason for a in report.allowed] == ["WANDB_MODE=disabled is set at cell 1 line 1"]


def test_requirement_lines_without_an_upper_bound(tmp_path: Path) -> None:
    dirty = (FIXTURES / "unpinned_requirement_dirty.txt").read_text()
    script(tmp_path / "dirty", dirty, "requirements.txt")
    script(tmp_path / "clean", (FIXTURES / "unpinned_requirement_clean.txt").read_text(), "requirements-dev.txt")
    report = review(tmp_path / "dirty")
    marked = [n for n, line in enumerate(dirty.splitlines(), 1) if "# expect" in line]
    assert [(f.line, f.rule) for f in report.findings] == [(n, "unpinned-requirement") for n in marked]
    assert [a.reason for a in report.allowed] == ["only prints"]
    assert review(tmp_path / "clean").findings == ()


def test_a_lock_file_beside_pins_what_the_requirements_leave_open(tmp_path: Path) -> None:
    script(tmp_path, "torch\nnumpy\n", "requirements.txt")
    script(tmp_path, '[[package]]\nname = "torch"\nversion = "2.13.0"\n', "uv.lock")
    assert [f.what for f in review(tmp_path).findings] == ["numpy without a version has no upper bound"]


def test_no_false_alarm_on_labkit_itself() -> None:
    report = review(Path(labkit.__file__).parent)
    assert [f"{f.path}:{f.line} {f.rule}: {f.what}" for f in (*report.findings, *report.unread)] == []


@pytest.mark.parametrize(
    ("wanted", "severities"),
    [
        ("transformers==4.57.1", ["medium"]),
        ("transformers>=4.40,<5", ["medium"]),
        ("transformers~=4.40", ["medium"]),
        ("transformers==4.*", ["medium"]),
        ("transformers>=4.40", ["high"]),
        ("transformers>=4.40,<6", ["high"]),
        ("transformers", ["high"]),
        ("", ["high"]),
        ("transformers==5.1", []),
        ("transformers>=5.0.0,<6", []),
        ("Transformers[torch] >= 5 ; python_version > '3'", []),
    ],
)
def test_an_unpinned_version_raises_the_severity(tmp_path: Path, wanted: str, severities: list[str]) -> None:
    path = script(tmp_path, "from transformers import TrainingArguments as TA\nTA('out')\n")
    script(tmp_path, wanted + "\n", "constraints.txt")
    assert [f.severity for f in review(path).findings] == severities
    assert [f.severity for f in review(tmp_path).findings if f.rule == "report-to"] == severities


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[project]\ndependencies = ["torch>=2.6,<3"]\n'),
        ("pyproject.toml", '[dependency-groups]\ndev = ["torch==2.13"]\n'),
        ("uv.lock", '[[package]]\nname = "torch"\nversion = "2.13.0"\n'),
        ("environment.yml", "name: x\nchannels:\n  - torch\ndependencies:\n  - pip\n  - pip:\n    - torch>=2.6\n"),
        ("environment.yml", "dependencies:\n  - conda-forge::torch=2.13\n"),
    ],
)
def test_versions_are_read_from_the_usual_files(tmp_path: Path, name: str, text: str) -> None:
    path = script(tmp_path, "import torch\ntorch.load(path)\n")
    assert rules(review(path)) == ["torch-load"]
    script(tmp_path, text, name)
    assert rules(review(path)) == []


def test_a_requirement_file_speaks_for_its_folder_and_those_below_only(tmp_path: Path) -> None:
    for folder in ("a", "a/deep", "b"):
        script(tmp_path, "import torch\ntorch.load(path)\n", f"{folder}/script.py")
    script(tmp_path, "torch==2.13\n", "a/requirements.txt")
    assert [f.path for f in review(tmp_path).findings] == ["b/script.py"]


def test_nothing_is_run_or_imported(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for name in ("script.py", "sitecustomize.py", "package/__init__.py", "conftest.py"):
        script(tmp_path / "code", f"open({str(marker)!r}, 'x')\nimport package\n", name)
    notebook(tmp_path / "code", f"!touch {marker}\nopen({str(marker)!r}, 'x')")
    before = set(sys.modules)
    report = review(tmp_path / "code")
    assert report.files == 5
    assert not marker.exists()
    assert {m for m in set(sys.modules) - before if not m.startswith("labkit.review")} == set()


def test_allow_comments_move_a_finding_aside_and_keep_the_reason(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "import torch\n"
        "torch.load(a, weights_only=False)  # labkit: allow torch-load our own file, digest checked above\n"
        "# labkit: allow torch-load: written by us\n"
        "# over two comment lines\n"
        "torch.load(\n    b,\n    weights_only=False,\n)\n"
        "torch.hub.load('me/model')  # labkit: allow remote-code,download read at this commit\n",
    )
    report = review(path)
    assert report.findings == ()
    assert [(a.finding.line, a.reason) for a in report.allowed] == [
        (2, "our own file, digest checked above"),
        (5, "written by us"),
        (9, "read at this commit"),
    ]
    assert "script.py line 5: torch-load: written by us" in render(report)
    assert run(path)[1] == 0


def test_an_allow_comment_without_reason_or_rule_or_use_is_itself_a_finding(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "import torch\n"
        "torch.load(a, weights_only=False)  # labkit: allow torch-load\n"
        "x = 1  # labkit: allow delete we clean up\n"
        "y = 1  # labkit: allow everything because\n"
        "text = '# labkit: allow delete in a text'\n",
    )
    report = review(path)
    assert [(f.line, f.rule) for f in report.findings] == [(2, "allow"), (2, "torch-load"), (3, "allow"), (4, "allow")]
    assert report.allowed == ()


def test_an_allow_comment_works_in_a_cell_with_magics(tmp_path: Path) -> None:
    path = notebook(tmp_path, "%matplotlib inline\n!rm -rf out  # labkit: allow delete made in the cell above\n")
    report = review(path)
    assert report.findings == ()
    assert [(a.finding.cell, a.finding.line, a.reason) for a in report.allowed] == [(1, 2, "made in the cell above")]


def test_exit_status_says_whether_the_chosen_severity_was_found(tmp_path: Path) -> None:
    path = script(tmp_path, "import pandas\npandas.read_csv('https://example.org/a.csv')\n")
    assert [run(path, severity)[1] for severity in ("low", "medium", "high")] == [1, 1, 0]
    assert run(script(tmp_path, "x = 1\n", "clean.py"))[1] == 0
    assert "1 below severity high not shown" in run(path, "high")[0]
    with pytest.raises(ReviewError, match="one of low, medium, high"):
        run(path, "grave")


def test_the_text_holds_place_reason_remedy_and_blind_spots_but_no_absolute_path(tmp_path: Path) -> None:
    path = script(tmp_path, "import wandb\nwandb.init()\nhelper(**options)\nimport beside\n")
    script(tmp_path, "", "beside.py")
    text, _ = run(path)
    assert "line 2: HIGH tracker: wandb.init" in text and "why: " in text and "do:  " in text
    assert "beside.py" in text and "cannot see" in text
    assert str(tmp_path) not in text
    assert text == run(path)[0]


def test_json_holds_the_same_as_the_report(tmp_path: Path) -> None:
    report = review(notebook(tmp_path, "import wandb\nwandb.init()", "%%R\nlibrary(x)"))
    data = json.loads(to_json(report))
    assert [(f["cell"], f["rule"]) for f in data["findings"]] == [(1, "tracker")]
    assert [(f["cell"], f["rule"]) for f in data["unread"]] == [(2, "unread")]
    assert data["files"] == 1 and data["cannot_see"] == list(report.cannot_see)
    assert json.loads(run(tmp_path, as_json=True)[0]) == data


def test_a_real_looking_key_is_never_repeated(tmp_path: Path) -> None:
    report = review(fixture("secret", "dirty"))
    for text in (render(report), to_json(report)):
        assert "hf_aBc" not in text and "0123456789" not in text and "sk-aBc" not in text
    path = script(tmp_path, "import os\nos.system('git clone https://me:hunter2@example.org/a.git')\n")
    assert "hunter2" not in render(review(path))


def test_blind_spots_name_the_places_of_this_file(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "import argparse, importlib, torch\nfrom somewhere import *\nimportlib.import_module(name)\n"
        "torch.load(p, **more)\ngetattr(torch, name)(p)\ngetattr(torch, 'load')\nexec(text)\n",
    )
    script(tmp_path, "echo", "train.sh")
    spots = " ".join(review(tmp_path).cannot_see)
    assert "script.py:3, script.py:5" in spots and "script.py:6" not in spots
    for part in ("**kwargs: script.py:4", "script.py (somewhere)", "becomes code says: script.py:7", "1 .sh"):
        assert part in spots, part
    assert "configuration files: script.py" in spots
    assert path.exists()


def test_star_imports_are_followed_with_less_confidence(tmp_path: Path) -> None:
    report = review(script(tmp_path, "from os import *\nfrom shutil import *\nrmtree('out')\n"))
    assert [(f.rule, f.line) for f in report.findings] == [("delete", 3)]


# Files that are odd


def test_a_file_that_does_not_parse_is_a_finding_of_its_own(tmp_path: Path) -> None:
    script(tmp_path, "def broken(:\n", "broken.py")
    script(tmp_path, "import wandb\nwandb.init()\n", "fine.py")
    script(tmp_path, "print 'old'\n", "old.py")
    report = review(tmp_path)
    assert [(f.path, f.line, f.rule) for f in report.unread] == [("broken.py", 1, "unread"), ("old.py", 1, "unread")]
    assert "Python 2" in report.unread[1].what and "Python 2" not in report.unread[0].what
    assert [f.path for f in report.findings] == ["fine.py"]
    assert run(tmp_path / "broken.py", "medium")[1] == 1


@pytest.mark.parametrize(
    ("data", "unread", "found_rules"),
    [
        (b"", 0, []),
        (b"\xef\xbb\xbfimport wandb\r\nwandb.init()\r\n", 0, ["tracker"]),
        (b"# -*- coding: latin-1 -*-\nname = '\xe9'\nimport wandb\nwandb.init()\n", 0, ["tracker"]),
        (b"name = '\xe9'\nimport wandb\nwandb.init()\n", 1, ["tracker"]),
        (b"# coding: no-such-encoding\nimport wandb\nwandb.init()\n", 1, ["tracker"]),
        ("import wandb\nwandb.init()\n".encode("utf-16"), 0, ["tracker"]),
        (b"\xff\xfex", 1, []),
        (b"x = 1\x00\n", 1, []),
        (b"import wandb\rwandb.init()\r", 0, ["tracker"]),
        (b"x = " + b"(" * 300 + b")" * 300, 1, []),
        (b"x = " + b"-" * 100_000 + b"1", 1, []),
        (b"x = '\\d'\n'a' is 'b'\n", 0, []),
        (b"x = 1\n" * 400_000, 1, []),
    ],
    ids=[
        "empty",
        "mark",
        "cookie",
        "latin",
        "cookie?",
        "utf16",
        "torn16",
        "null",
        "cr",
        "nested",
        "minus",
        "escape",
        "huge",
    ],
)
def test_odd_bytes_end_in_words(tmp_path: Path, data: bytes, unread: int, found_rules: list[str]) -> None:
    path = tmp_path / "odd.py"
    path.write_bytes(data)
    report = review(path)
    assert (len(report.unread), rules(report)) == (unread, found_rules)


def test_deep_but_valid_code_is_read_to_the_end(tmp_path: Path) -> None:
    chain = "if x == 0:\n    pass\n" + "".join(f"elif x == {n}:\n    pass\n" for n in range(1, 900))
    attributes = "b" + ".c" * 600 + "()\n"
    cycle = "p = q\nq = p\nr = r or r\np.load(1)\n" + "".join(f"n{i} = n{i + 1} or n{i + 1}\n" for i in range(60))
    report = review(script(tmp_path, chain + attributes + cycle + "import wandb\nwandb.init()\n"))
    assert report.unread == () and rules(report) == ["tracker"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("{}", "no list of cells"),
        ("[1]", "no list of cells"),
        ("[" * 100_000, "not JSON"),
        ('{"cells": [], "metadata": {"kernelspec": {"language": "R", "name": "ir"}}}', "language is r"),
        ('{"cells": [{"cell_type": "code", "source": {"a": 1}}]}', "source is not text"),
    ],
)
def test_what_is_no_python_notebook_is_said(tmp_path: Path, text: str, reason: str) -> None:
    (unread,) = review(script(tmp_path, text, "book.ipynb")).unread
    assert reason in unread.what


def test_empty_and_old_notebooks_are_read(tmp_path: Path) -> None:
    empty = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
    assert review(script(tmp_path, empty, "empty.ipynb")).at_least("low") == ()
    code = {"cell_type": "code", "language": "python", "input": ["import wandb\n", "wandb.init()"]}
    cells = [{"cell_type": "markdown", "source": "x"}, code]
    old = {"worksheets": [{"cells": cells}], "metadata": {"name": ""}, "nbformat": 3}
    report = review(script(tmp_path, json.dumps(old), "old.ipynb"))
    assert [(f.cell, f.line, f.rule) for f in report.findings] == [(2, 2, "tracker")]


def test_one_broken_cell_costs_only_itself_and_names_pass_between_cells(tmp_path: Path) -> None:
    report = review(notebook(tmp_path, "import wandb as w", "def broken(:", "w.init()"))
    assert [(f.cell, f.rule) for f in (*report.unread, *report.findings)] == [(2, "unread"), (3, "tracker")]


def test_folders_with_loops_copies_and_foreign_packages(tmp_path: Path) -> None:
    dirty = "import wandb\nwandb.init()\n"
    for name in (
        "a.py",
        ".ipynb_checkpoints/a-checkpoint.py",
        "__pycache__/a.py",
        "mine/lib/site-packages/p.py",
        ".git/hook.py",
    ):
        script(tmp_path, dirty, name)
    script(tmp_path, dirty, "venv/lib/x.py")
    script(tmp_path, "", "venv/pyvenv.cfg")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    report = review(tmp_path)
    assert [f.path for f in report.findings] == ["a.py"]
    assert [f.path for f in report.unread] == ["gone.py", "pipe.py"]
    left_out = next(s for s in report.cannot_see if "left out" in s)
    assert "1 loop (a link)" in left_out and "1 venv" in left_out and ".ipynb_checkpoints" in left_out


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReviewError, match="not there"):
        review(tmp_path / "missing.py")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ReviewError, match="neither a file nor a folder"):
        review(tmp_path / "pipe")


def test_damaged_requirement_files_are_said_and_do_not_stop_the_review(tmp_path: Path) -> None:
    script(tmp_path, "import wandb\nwandb.init()\n", "a.py")
    script(tmp_path, "[project\n", "pyproject.toml")
    (tmp_path / "requirements.txt").write_bytes(b"torch\xff\n\x00\n")
    report = review(tmp_path)
    assert "tracker" in rules(report)
    assert [f.path for f in report.unread] == ["pyproject.toml"]


def test_a_thousand_files_take_seconds(tmp_path: Path) -> None:
    text = fixture("delete", "clean").read_text() + "\n".join(
        f"def f{n}(a):\n    return torch.sum(a)" for n in range(12)
    )
    for number in range(1000):
        script(tmp_path, text, f"part{number % 10}/file{number}.py")
    start = time.process_time()
    report = review(tmp_path)
    assert (report.files, report.findings) == (1000, ())
    assert time.process_time() - start < 15  # about 3 s where this was written; the rest is room for a slow machine


def test_every_rule_says_why_and_what_to_do_and_is_a_word_for_allow_comments() -> None:
    for name, rule in RULES.items():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name) and rule.why.endswith(".") and rule.remedy.endswith(".")
