"""Copies of the lessons to hand out: without solutions for students, or as nbgrader source with them for instructors.

`python3 workbook.py release --out DIR [--solutions]`. A check becomes a locked cell with points, which fails unless the
answer holds; its stub becomes the cell to be answered. Metadata follow nbgrader's cell schema 3. All lessons.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from labkit.errors import LabkitError
from labkit.files import write_text_durably
from labkit.lab import checks
from labkit.lab.checks.frame import SEED_VARIABLE

LESSONS = Path(__file__).resolve().parents[2] / "notebooks"
BEGIN, END = "# BEGIN SOLUTION", "# END SOLUTION"
SCHEMA = 3
MINUTES_A_POINT = 5


@dataclass(frozen=True)
class Exercise:
    """Where the parts of an exercise are among a notebook's cells, and the names that they use."""

    check: str  # check_plan
    answer: str  # plan, the learner's name
    stub_cell: int
    check_cell: int
    solution_cell: int
    solution: str  # plan_solution

    @property
    def points(self) -> int:
        """One for each five minutes that the exercise is meant to take."""
        return max(1, round(getattr(checks, self.check).minutes / MINUTES_A_POINT))

    @property
    def varies(self) -> bool:
        """A function can be tried on other numbers; a table answers the ones that the lesson shows."""
        return bool(getattr(checks, self.check).wants_function)


def exercises(notebook: Any) -> list[Exercise]:
    """Every exercise of a lesson. Raises LabkitError for a check without a stub above it or a solution."""
    checked, solved = dict[int, tuple[str, str]](), dict[str, tuple[int, str]]()
    for number, cell in enumerate(notebook.cells):
        if _is_solution(cell):
            for check, argument in _checks_in(cell.source):
                solved[check] = (number, argument)
        elif cell.cell_type == "code" and (found := _only_a_check(cell.source)) is not None:
            checked[number] = found
    return [_exercise(notebook, number, *names, solved) for number, names in checked.items()]


def _exercise(notebook: Any, number: int, check: str, answer: str, solved: dict[str, tuple[int, str]]) -> Exercise:
    above = [n for n in range(number) if "TODO" in notebook.cells[n].source and answer in _defined(notebook.cells[n])]
    if not above or check not in solved:
        missing = "stub with lab.TODO above it" if not above else "solution"
        raise LabkitError(f"{check}({answer}) has no {missing}", "a stub, a check and a solution", "add it")
    return Exercise(check, answer, above[-1], number, *solved[check])


def _is_solution(cell: Any) -> bool:
    return cell.cell_type == "code" and ("solution" in cell.metadata.get("tags", []) or BEGIN in cell.source)


def _checks_in(source: str) -> list[tuple[str, str]]:
    """(check, name of its first argument) of every call of a check."""
    calls = [node for node in ast.walk(_parsed(source)) if isinstance(node, ast.Call) and node.args]
    return [
        (call.func.attr, call.args[0].id)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr.startswith("check_")
        and isinstance(call.args[0], ast.Name)
    ]  # fmt: skip


def _only_a_check(source: str) -> tuple[str, str] | None:
    """What `lab.checks.check_x(answer)` checks, when a cell consists of nothing else."""
    body = _parsed(source).body
    found = _checks_in(source)
    return found[0] if len(body) == 1 and isinstance(body[0], ast.Expr) and len(found) == 1 else None


def _defined(cell: Any) -> set[str]:
    names = set[str]()
    for node in _parsed(cell.source).body if cell.cell_type == "code" else []:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def _parsed(source: str) -> ast.Module:
    return ast.parse(re.sub(r"^\s*[%!].*$", "pass", source, flags=re.MULTILINE))


# ------------------------------------------------------------------------------------------ the two forms


def student(notebook: Any, lesson: str) -> Any:
    """A copy to hand out: solutions gone, stubs as they are, checks locked and graded, outputs cleared.

    Raises LabkitError when something of a solution would be left.
    """
    made, found = _cleared(notebook), exercises(notebook)
    for exercise in found:
        made.cells[exercise.stub_cell].metadata["nbgrader"] = _answered(lesson, exercise)
        cell = made.cells[exercise.check_cell]
        _grade(cell, lesson, exercise)
        cell.metadata.update(editable=False, deletable=False)
    made.cells = [cell for cell in made.cells if not _is_solution(cell)]
    names = {exercise.solution for exercise in found}
    for number, cell in enumerate(made.cells):
        left = [word for word in (BEGIN, END, *names) if re.search(rf"{re.escape(word)}\b", cell.source)]
        if left:
            raise LabkitError(f"cell {number} of {lesson} still holds {left[0]!r}", "no trace of a solution", "move it")
    return made


def instructor(notebook: Any, lesson: str, seed: int | None = None) -> Any:
    """The source of an nbgrader assignment: each stub holds its solution between BEGIN and END SOLUTION.

    seed: adds hidden tests with the numbers of that variant, which nbgrader takes out of what students get.
    """
    made = _cleared(notebook)
    for exercise in exercises(notebook):
        cell = made.cells[exercise.stub_cell]
        cell.metadata["nbgrader"] = _answered(lesson, exercise)
        region = _region(notebook.cells[exercise.solution_cell].source)
        inside = _inside(cell.source, region, exercise)
        if inside is None:  # nbgrader leaves a line that raises; the tag lets `Run All` go on
            same = f"{exercise.answer} = {exercise.solution}"
            inside = "\n".join([cell.source, f"##{BEGIN}", region, same, f"##{END}"])
            cell.metadata["tags"] = sorted({*cell.metadata.get("tags", []), "raises-exception"})
        cell.source = inside
        cell = made.cells[exercise.check_cell]
        _grade(cell, lesson, exercise)
        if seed is not None and exercise.varies:
            again = f"lab.checks.{exercise.check}({exercise.answer}, seed={seed}).require()"
            cell.source += f"\n### BEGIN HIDDEN TESTS\n{again}\n### END HIDDEN TESTS"
    made.cells = [cell for cell in made.cells if not _is_solution(cell) or "nbgrader" in cell.metadata]
    return made


def _cleared(notebook: Any) -> Any:
    """A copy without outputs: they would tell the surprises, and stored results belong to unanswered checks."""
    made = copy.deepcopy(notebook)
    for cell in made.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return made


def _answered(lesson: str, exercise: Exercise) -> dict[str, Any]:
    """Metadata of a cell that the student fills in; the points are given by the check."""
    return {"schema_version": SCHEMA, "grade_id": f"{lesson}-{exercise.answer}", "grade": False, "solution": True,
            "locked": False, "task": False}  # fmt: skip


def _grade(cell: Any, lesson: str, exercise: Exercise) -> None:
    """A locked cell with points: the verdict, then an error unless it holds; its tag lets `Run All` go on."""
    asked = exercise.answer if exercise.varies else f"{exercise.answer}, seed=0"
    checked = f"result = lab.checks.{exercise.check}({asked})"
    cell.source = "\n".join([checked, "display(result)", "assert result.holds, result.exercise"])
    cell.metadata["tags"] = sorted({*cell.metadata.get("tags", []), "check", "raises-exception"})
    cell.metadata["nbgrader"] = {
        "schema_version": SCHEMA, "grade_id": f"{lesson}-{exercise.check}", "grade": True, "solution": False,
        "locked": True, "task": False, "points": exercise.points,
    }  # fmt: skip


def _region(source: str) -> str:
    """What stands between BEGIN and END SOLUTION. Raises LabkitError when they are not two lines of their own."""
    lines = source.split("\n")
    marks = [n for n, line in enumerate(lines) if line.strip() in (BEGIN, END)]
    if [lines[n].strip() for n in marks] != [BEGIN, END]:
        raise LabkitError("a solution cell without one region", f"{BEGIN} and {END}, each on a line", "mark the region")
    return "\n".join(lines[marks[0] + 1 : marks[1]]).strip("\n")


def _inside(stub: str, region: str, exercise: Exercise) -> str | None:
    """The stub with its solution in its body, so that what nbgrader leaves is still a function; None for a table."""
    theirs, ours = _function(stub, exercise.answer), _function(region, exercise.solution)
    if theirs is None or ours is None or not isinstance(theirs.body[-1], ast.Return):
        return None
    alone = len(_parsed(region).body) == 1
    alike = ast.dump(theirs.args) == ast.dump(ours.args) and list(map(ast.dump, theirs.decorator_list)) == list(
        map(ast.dump, ours.decorator_list)
    )
    if alone and alike:
        inside = "\n".join(region.split("\n")[ours.body[0].lineno - 1 :])
    else:
        given = ", ".join(argument.arg for argument in theirs.args.args)
        inside = textwrap.indent(f"{region}\n\nreturn {exercise.solution}({given})", "    ")
    lines = stub.split("\n")
    first, last = theirs.body[-1].lineno - 1, theirs.body[-1].end_lineno or theirs.body[-1].lineno
    return "\n".join([*lines[:first], f"    ##{BEGIN}", inside, f"    ##{END}", *lines[last:]])


def _function(source: str, name: str) -> ast.FunctionDef | None:
    nodes = _parsed(source).body
    return next((node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == name), None)


# ------------------------------------------------------------------------------------------ files


def release(out: Path, solutions: bool = False, lessons: Path = LESSONS, seed: int | None = None) -> list[Path]:
    """Write every lesson to `out` and return the paths. Nothing is written unless all lessons can be.

    Raises LabkitError where there are no lessons, or where a file of that name with other content is in the way.
    """
    sources = sorted(lessons.glob("*.ipynb"))
    if not sources:
        raise LabkitError("there are no lessons beside this labkit", "the folder notebooks/", "use a clone")
    made = {}
    for path in sources:
        notebook = nbformat.read(path, as_version=4)
        copied = instructor(notebook, path.stem, seed) if solutions else student(notebook, path.stem)
        nbformat.validate(copied)
        made[out / path.name] = nbformat.writes(copied) + "\n"
    for target, text in made.items():
        if target.exists() and target.read_text(encoding="utf-8") != text:
            raise LabkitError(f"{target} exists already and is another", "an empty folder", "choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    for target, text in made.items():
        write_text_durably(target, text)
    return list(made)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command behind `workbook.py release`."""
    parser = argparse.ArgumentParser(prog="workbook.py release", description="Copies of the lessons to hand out.")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--solutions", action="store_true", help="nbgrader source, for instructors")
    asked = parser.parse_args(arguments)
    seed = os.environ.get(SEED_VARIABLE) if asked.solutions else None
    try:
        paths = release(asked.out, asked.solutions, seed=None if seed is None else int(seed))
    except (LabkitError, ValueError) as error:
        print(f"workbook: {error}", file=sys.stderr)
        return 1
    form = "with solutions, for instructors" if asked.solutions else "without solutions, for students"
    print(f"{len(paths)} lessons {form}: {asked.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
