"""Handing out: student copies hold no solution, metadata are valid, real nbgrader marks right answers and only them."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import nbformat
import pytest
from answers import budgeting

import workbook
from labkit.errors import LabkitError
from labkit.lab import checks, release

LESSONS = sorted(workbook.NOTEBOOKS.glob("*.ipynb"))
KEYS = {"schema_version", "grade_id", "grade", "solution", "locked", "task", "points"}


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def marked(notebook: Any, kind: str) -> list[Any]:
    """Cells whose nbgrader metadata say so; kind: "grade" or "solution"."""
    return [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get(kind)]


def both_forms(path: Path) -> list[Any]:
    return [release.student(read(path), path.stem), release.instructor(read(path), path.stem, seed=7)]


# ------------------------------------------------------------------------- every lesson


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_metadata_are_valid_in_both_forms(path: Path) -> None:
    for notebook in both_forms(path):
        nbformat.validate(notebook)
        found = [cell.metadata["nbgrader"] for cell in notebook.cells if "nbgrader" in cell.metadata]
        assert len({one["grade_id"] for one in found}) == len(found) > 0
        for one in found:
            assert set(one) == (KEYS if one["grade"] else KEYS - {"points"})
            assert one["schema_version"] == 3 and one["task"] is False
            assert one["grade_id"].replace("_", "").replace("-", "").isalnum()
            assert (one["grade"], one["locked"]) == (not one["solution"], not one["solution"])
            assert not one["grade"] or one["points"] >= 1


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_student_copy_has_every_stub_and_check_and_no_solution(path: Path) -> None:
    lesson, made = read(path), release.student(read(path), path.stem)
    text = "\n".join(cell.source for cell in made.cells)
    assert "SOLUTION" not in text and "_solution" not in text
    kept = {cell.source for cell in lesson.cells}
    stubs = marked(made, "solution")
    assert all("lab.TODO" in cell.source and cell.source in kept for cell in stubs)
    graded = {f"check_{one.exercise}" for one in checks.ALL if one.lesson == path.stem}
    assert graded == {cell.metadata["nbgrader"]["grade_id"].split("-")[-1] for cell in marked(made, "grade")}
    assert len(stubs) == len(graded) > 0
    for cell in marked(made, "grade"):
        assert "assert result.holds" in cell.source and cell.metadata["editable"] is False
    assert all(not cell.outputs and cell.execution_count is None for cell in made.cells if cell.cell_type == "code")


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_instructor_form_has_one_region_in_every_answer_and_hides_a_variant(path: Path) -> None:
    made = release.instructor(read(path), path.stem, seed=7)
    for cell in marked(made, "solution"):
        assert cell.source.count("### BEGIN SOLUTION") == cell.source.count("### END SOLUTION") == 1
        compile(cell.source, "an answer", "exec")
    solved = sum(cell.source.count("BEGIN SOLUTION") for cell in made.cells)
    assert solved == len(marked(made, "solution")), "solutions only where nbgrader takes them out"
    for exercise, cell in zip(release.exercises(read(path)), marked(made, "grade"), strict=True):
        assert ("### BEGIN HIDDEN TESTS" in cell.source and "seed=7" in cell.source) == exercise.varies


def test_lesson_that_nothing_can_be_handed_out_of_is_refused() -> None:
    lesson = read(workbook.NOTEBOOKS / "08_budgeting.ipynb")
    plan = next(one for one in release.exercises(lesson) if one.answer == "plan")
    for number, word in ((plan.stub_cell, "stub"), (plan.solution_cell, "solution")):
        spoilt = copy.deepcopy(lesson)
        del spoilt.cells[number]
        with pytest.raises(LabkitError, match=word):
            release.student(spoilt, "08_budgeting")
    leaks = copy.deepcopy(lesson)
    leaks.cells.append(nbformat.v4.new_code_cell("plan_solution(1, 1, 1, [1, 1], (1, 0), (1, 0), 1, 1)"))
    with pytest.raises(LabkitError, match="plan_solution"):
        release.student(leaks, "08_budgeting")


# ------------------------------------------------------------------------- a graded cell


def graded(cell: Any, **answers: Any) -> list[Any]:
    """Run a graded cell with an answer in place; what it displayed. Raises what nbgrader would see."""
    from labkit import lab

    shown: list[Any] = []
    exec(compile(cell.source, "graded", "exec"), {"lab": lab, "display": shown.append, **answers})
    return shown


def test_graded_cell_passes_the_right_answer_only() -> None:
    made = release.student(read(workbook.NOTEBOOKS / "08_budgeting.ipynb"), "08_budgeting")
    cells = {cell.metadata["nbgrader"]["grade_id"].split("check_")[1]: cell for cell in marked(made, "grade")}
    for name, cell in cells.items():
        (shown,) = graded(cell, **{name: budgeting.RIGHT[name]})
        assert shown.holds
        for wrong in [checks.TODO, *budgeting.WRONG[name].values()]:
            with pytest.raises(AssertionError, match=name):
                graded(cell, **{name: wrong})


def test_hidden_variant_finds_an_answer_that_knows_the_visible_numbers_by_heart() -> None:
    from labkit.lab.checks.budgeting.plan import case

    c = case(0)
    known = budgeting.plan(c.examples, c.epochs, c.batch, c.times, c.evaluation, c.saving, c.price, c.devices)
    lesson = read(workbook.NOTEBOOKS / "08_budgeting.ipynb")
    plain, hidden = (marked(release.instructor(lesson, "08", seed), "grade")[0] for seed in (None, 4711))
    graded(plain, plan=lambda *numbers: known)
    with pytest.raises(AssertionError, match="plan"):
        graded(hidden, plan=lambda *numbers: known)
    graded(hidden, plan=budgeting.plan)


# ------------------------------------------------------------------------- the command


def test_command_writes_all_lessons_silently_and_overwrites_nothing_else(tmp_path: Path, capfd) -> None:
    for form in ([], ["--solutions"]):
        out = tmp_path / f"out{len(form)}"
        assert release.main(["--out", str(out), *form]) == 0
        assert release.main(["--out", str(out), *form]) == 0, "the same again is no conflict"
        assert [path.name for path in sorted(out.iterdir())] == [path.name for path in LESSONS]
        assert capfd.readouterr().err == ""
    mine = tmp_path / "out0" / LESSONS[0].name
    mine.write_text(mine.read_text(encoding="utf-8") + " ", encoding="utf-8")
    before = {path: path.read_bytes() for path in mine.parent.iterdir()}
    assert release.main(["--out", str(mine.parent)]) == 1
    assert {path: path.read_bytes() for path in mine.parent.iterdir()} == before
    said = capfd.readouterr().err
    assert LESSONS[0].name in said and "choose another --out" in said and said.count("\n") == 1


# ------------------------------------------------------------------------- real nbgrader

PAGE = {path.stem: path.stem.partition("_")[2] for path in LESSONS}
MARKS = """
import json, sys
from nbgrader.api import Gradebook
with Gradebook(sys.argv[1]) as book:
    marks = {}
    for one in book.assignment_submissions("core"):
        for notebook in one.notebooks:
            marks[f"{one.student.id}/{notebook.name}"] = [notebook.score, notebook.max_score]
print(json.dumps(marks))
"""


def answered(path: Path, which: str) -> Any:
    """A submission: below every stub stands the right answer, or the first known-wrong one.

    A wrong one, and a blank one, leave out the cells between, which a student may.
    """
    notebook, page = read(path), PAGE[path.stem]
    answers = importlib.import_module(f"answers.{page}")
    for exercise in release.exercises(read(workbook.NOTEBOOKS / path.name)):
        mark = f"{path.stem}-{exercise.answer}"
        cell = next(c for c in marked(notebook, "solution") if c.metadata["nbgrader"]["grade_id"] == mark)
        key = exercise.check.removeprefix("check_")
        taken = {"right": f"RIGHT[{key!r}]", "wrong": f"WRONG[{key!r}][{next(iter(answers.WRONG[key]))!r}]"}
        if which in taken:
            lines = ["import sys", f"sys.path.insert(0, {str(Path(__file__).parent)!r})",
                     f"import answers.{page} as _answers", f"{exercise.answer} = _answers.{taken[which]}"]  # fmt: skip
            stub = re.sub(r"^raise NotImplementedError\(\)$", "", cell.source, flags=re.MULTILINE)  # below a table
            cell.source = "\n".join([stub, *lines])
    if which != "right":
        first = next(n for n, cell in enumerate(notebook.cells) if "lab.setup" in cell.source)
        for number, cell in enumerate(notebook.cells):
            if cell.cell_type == "code" and "nbgrader" not in cell.metadata and number != first:
                cell.source = "pass"
    return notebook


def nbgrader(course: Path, *arguments: str) -> str:
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # nbgrader calls alembic
    environment = {**workbook.test_environment(), "PYTHONPATH": str(workbook.ROOT), "JUPYTER_CONFIG_DIR": str(course),
                   "PATH": tools}  # fmt: skip
    command = [sys.executable, "-W", "ignore", "-m", "nbgrader", *arguments]
    done = subprocess.run(command, cwd=course, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr


@pytest.mark.slow
def test_nbgrader_gives_full_marks_for_right_answers_and_none_for_wrong_or_blank_ones(tmp_path: Path) -> None:
    if importlib.util.find_spec("nbgrader") is None:
        pytest.skip("nbgrader is not installed here: pip install nbgrader, then run this test again")
    release.release(tmp_path / "source" / "core", solutions=True, seed=4711)
    config = """
        c = get_config()
        c.CourseDirectory.course_id = "labkit"
        c.ExecutePreprocessor.timeout = 240
        """
    (tmp_path / "nbgrader_config.py").write_text(textwrap.dedent(config), encoding="utf-8")
    nbgrader(tmp_path, "generate_assignment", "core")
    for path in LESSONS:
        given = read(tmp_path / "release" / "core" / path.name)
        text = "\n".join(cell.source for cell in given.cells)
        assert "SOLUTION" not in text and "HIDDEN" not in text and "4711" not in text and "_solution" not in text
        for student in ("right", "wrong", "blank"):
            place = tmp_path / "submitted" / student / "core"
            place.mkdir(parents=True, exist_ok=True)
            nbformat.write(answered(tmp_path / "release" / "core" / path.name, student), place / path.name)
    nbgrader(tmp_path, "autograde", "core")
    script = [sys.executable, "-W", "ignore", "-c", MARKS, f"sqlite:///{tmp_path / 'gradebook.db'}"]
    marks = json.loads(subprocess.run(script, capture_output=True, text=True, check=True).stdout)
    assert len(marks) == 3 * len(LESSONS)
    for name, (score, most) in marks.items():
        assert most > 0 and score == (most if name.startswith("right/") else 0), f"{name}: {score} of {most}"
    for path in tmp_path.glob("autograded/right/core/*.ipynb"):
        outputs = [output for cell in read(path).cells for output in cell.get("outputs", [])]
        assert not [o for o in outputs if o.get("name") == "stderr" or o.output_type == "error"], path.name
