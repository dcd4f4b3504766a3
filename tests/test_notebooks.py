"""Guards over the lessons as they are stored, and the proof that each guard and the nbval gate can fail.

nbval compares what cells print, but passes a notebook whose outputs were cleared, ignores pictures, sizes, and all that
makes a lesson unreadable. Those are looked after here. tests/notebooks_bad/ holds small notebooks for the gate itself.
"""

from __future__ import annotations

import ast
import copy
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

import workbook

LESSONS = sorted(workbook.NOTEBOOKS.glob("*.ipynb"))
BAD = Path(__file__).parent / "notebooks_bad"
MOST_BYTES = 300_000
MOST_FUNCTION_LINES = 15
MOST_CELL_LINES = 30
CELLS = {"00_start_here": (12, 18)}  # every other lesson: 20 to 40
LONG_FUNCTION_ALLOWED = {"01_state_machine": 1}  # the loop written by hand
MACHINE_PATH = re.compile(r"(?<![\w.])(/(home|Users|root|work|tmp|private|mnt|usr|opt)/\w|[A-Z]:\\\w)|site-packages")
ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


# ------------------------------------------------------------------------- guards: notebook in, complaints out


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def executed_in_order(notebook: Any, name: str) -> Iterator[str]:
    counts = [cell.execution_count for cell in code_cells(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        yield f"execution counts are {counts}, not 1 to {len(counts)}: run `workbook.py lessons {name}`"


def no_empty_code(notebook: Any, name: str) -> Iterator[str]:
    yield from (f"code cell {n} is empty" for n, c in enumerate(code_cells(notebook), 1) if not c.source.strip())


def no_stderr_no_error(notebook: Any, name: str) -> Iterator[str]:
    for number, cell in enumerate(code_cells(notebook), 1):
        for output in cell.outputs:
            if output.get("name") == "stderr":
                yield f"code cell {number} wrote to stderr: {output.text[:80]!r}"
            if output.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", []):
                yield f"code cell {number} stores an error: {output.ename}"


def no_stored_widgets(notebook: Any, name: str) -> Iterator[str]:
    if "widgets" in notebook.metadata:
        yield "metadata.widgets is stored"
    for number, cell in enumerate(code_cells(notebook), 1):
        if any(WIDGET_VIEW in output.get("data", {}) for output in cell.outputs):
            yield f"code cell {number} stores a widget view that shows 'model not found' to a reader"


def kernel_is_named(notebook: Any, name: str) -> Iterator[str]:
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "metadata.kernelspec.name is not python3: JupyterLab would ask which kernel to use"


def pictures_have_words(notebook: Any, name: str) -> Iterator[str]:
    for number, cell in enumerate(notebook.cells):
        texts = [cell.source] if cell.cell_type == "markdown" else []
        texts += [output.get("data", {}).get("text/html", "") for output in cell.get("outputs", [])]
        for text in texts:
            if re.search(r"!\[\s*\]\(", text):
                yield f"cell {number}: a markdown picture without alt text"
            for tag in re.findall(r"<img\b[^>]*>", text, flags=re.IGNORECASE):
                if not re.search(r"\balt\s*=\s*[\"'][^\"']+", tag, flags=re.IGNORECASE):
                    yield f"cell {number}: an <img> without alt text"


def lines_of(node: ast.AST, source: str) -> int:
    """Lines of a function that a reader has to read: no blank lines, no comments."""
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    lines = [line.strip() for line in source.splitlines()[node.lineno - 1 : node.end_lineno]]
    return sum(1 for line in lines if line and not line.startswith("#"))


def short_code(notebook: Any, name: str) -> Iterator[str]:
    allowed = LONG_FUNCTION_ALLOWED.get(name, 0)
    for number, cell in enumerate(code_cells(notebook), 1):
        source = re.sub(r"^\s*[%!].*$", "pass", cell.source, flags=re.MULTILINE)
        functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        long = [f for f in functions if lines_of(f, source) > MOST_FUNCTION_LINES]
        for function in long:
            allowed -= 1
            if allowed < 0:
                yield f"code cell {number}: {function.name} has {lines_of(function, source)} lines"
        read = sum(1 for line in source.splitlines() if line.strip() and not line.strip().startswith("#"))
        if read > MOST_CELL_LINES and not long:
            yield f"code cell {number} has {read} lines"


def cell_number(notebook: Any, name: str) -> Iterator[str]:
    least, most = CELLS.get(name, (20, 40))
    if not least <= len(notebook.cells) <= most:
        yield f"{len(notebook.cells)} cells, but {least} to {most} are planned"


def same_on_any_machine(notebook: Any, name: str) -> Iterator[str]:
    for number, cell in enumerate(notebook.cells):
        texts = [cell.source]
        for output in cell.get("outputs", []):
            texts += [output.get("text", ""), *(v for k, v in output.get("data", {}).items() if k.startswith("text/"))]
        for text in texts:
            for pattern, what in ((MACHINE_PATH, "a path of one machine"), (ADDRESS, "a memory address")):
                if found := pattern.search(text):
                    yield f"cell {number} holds {what}: {found.group()!r}"


def ignored_output_is_asserted(notebook: Any, name: str) -> Iterator[str]:
    cells = code_cells(notebook)
    for number, (cell, after) in enumerate(zip(cells, [*cells[1:], None], strict=True), 1):
        ignored = "nbval-ignore-output" in cell.metadata.get("tags", []) or "NBVAL_IGNORE_OUTPUT" in cell.source
        if ignored and (after is None or "assert" not in after.source):
            yield f"code cell {number} has its output ignored, and the next one asserts nothing"


def valid_format(notebook: Any, name: str) -> Iterator[str]:
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        yield f"not a valid notebook: {str(error).splitlines()[0]}"


GUARDS: list[Callable[[Any, str], Iterator[str]]] = [
    executed_in_order,
    no_empty_code,
    no_stderr_no_error,
    no_stored_widgets,
    kernel_is_named,
    pictures_have_words,
    short_code,
    cell_number,
    same_on_any_machine,
    ignored_output_is_asserted,
    valid_format,
]


def too_large(path: Path) -> list[str]:
    size = path.stat().st_size
    return [f"{size} bytes, more than {MOST_BYTES}"] if size > MOST_BYTES else []


# ------------------------------------------------------------------------- the lessons


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_stored_lesson_keeps_all_rules(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    complaints = [complaint for guard in GUARDS for complaint in guard(notebook, path.stem)] + too_large(path)
    assert complaints == []


def test_lesson_names_are_numbered_without_a_gap() -> None:
    numbers = [int(match.group(1)) for path in LESSONS if (match := re.fullmatch(r"(\d\d)_[a-z0-9_]+", path.stem))]
    assert len(numbers) == len(LESSONS)
    assert numbers == list(range(len(LESSONS)))


# ------------------------------------------------------------------------- each guard can fail


def sound_notebook() -> Any:
    """A notebook that every guard passes."""
    new = nbformat.v4
    cells = [new.new_markdown_cell("![a curve that falls](curve.png)") for _ in range(10)]
    for count in range(1, 11):
        output = new.new_output("stream", name="stdout", text=f"{count}\n")
        cells.append(new.new_code_cell(f"print({count})", execution_count=count, outputs=[output]))
    notebook = new.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return notebook


def long_function(cell: Any) -> None:
    cell.source = "def f():\n" + "    a = 1\n" * MOST_FUNCTION_LINES


def store(cell: Any, **output: Any) -> None:
    cell.outputs = [nbformat.v4.new_output(**output)]


FAULTS: dict[str, tuple[Callable[[Any, str], Iterator[str]], Callable[[Any], Any]]] = {
    "outputs cleared": (executed_in_order, lambda nb: nb.cells[-1].update(execution_count=None, outputs=[])),
    "run out of order": (executed_in_order, lambda nb: nb.cells[-1].update(execution_count=99)),
    "empty code cell": (no_empty_code, lambda nb: nb.cells[-1].update(source=" \n")),
    "stderr": (no_stderr_no_error, lambda nb: store(nb.cells[-1], output_type="stream", name="stderr", text="oh")),
    "error": (no_stderr_no_error, lambda nb: store(nb.cells[-1], output_type="error", ename="E", evalue="v")),
    "widget state": (no_stored_widgets, lambda nb: nb.metadata.update(widgets={})),
    "widget view": (
        no_stored_widgets,
        lambda nb: store(nb.cells[-1], output_type="display_data", data={WIDGET_VIEW: {"model_id": "1"}}),
    ),
    "no kernel": (kernel_is_named, lambda nb: nb.metadata.pop("kernelspec")),
    "another kernel": (kernel_is_named, lambda nb: nb.metadata.kernelspec.update(name="my_env")),
    "markdown picture": (pictures_have_words, lambda nb: nb.cells[0].update(source="![](a.png)")),
    "html picture": (pictures_have_words, lambda nb: nb.cells[0].update(source='<img src="a.png" alt="">')),
    "picture in an output": (
        pictures_have_words,
        lambda nb: store(nb.cells[-1], output_type="display_data", data={"text/html": "<img src='x'>"}),
    ),
    "long function": (short_code, lambda nb: long_function(nb.cells[-1])),
    "long cell": (short_code, lambda nb: nb.cells[-1].update(source="a = 1\n" * (MOST_CELL_LINES + 1))),
    "few cells": (cell_number, lambda nb: nb.cells.pop()),
    "many cells": (cell_number, lambda nb: nb.cells.extend(nb.cells[:1] * 40)),
    "path in the text": (same_on_any_machine, lambda nb: nb.cells[0].update(source="see /home/ada/labkit")),
    "path in an output": (
        same_on_any_machine,
        lambda nb: store(nb.cells[-1], output_type="stream", name="stdout", text=r"C:\Users\ada\x.py"),
    ),
    "address": (
        same_on_any_machine,
        lambda nb: store(nb.cells[-1], output_type="stream", name="stdout", text="<object at 0x7f3a2c1b>"),
    ),
    "ignored output": (
        ignored_output_is_asserted,
        lambda nb: nb.cells[-2].metadata.update(tags=["nbval-ignore-output"]),
    ),
    "ignored at the end": (
        ignored_output_is_asserted,
        lambda nb: nb.cells[-1].metadata.update(tags=["nbval-ignore-output"]),
    ),
    "not a notebook": (valid_format, lambda nb: nb.cells[-1].pop("outputs")),
}


def test_a_sound_notebook_passes_every_guard() -> None:
    assert [text for guard in GUARDS for text in guard(sound_notebook(), "sound")] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_guard_catches(fault: str) -> None:
    guard, spoil = FAULTS[fault]
    notebook = copy.deepcopy(sound_notebook())
    spoil(notebook)
    assert list(guard(notebook, "spoilt")), f"nothing was said about: {fault}"


def test_every_guard_has_a_fault_that_it_catches() -> None:
    assert {guard for guard, _ in FAULTS.values()} == set(GUARDS)


def test_guard_catches_a_large_file(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_bytes(b" " * (MOST_BYTES + 1))
    (tmp_path / "b.ipynb").write_bytes(b" " * MOST_BYTES)
    assert too_large(tmp_path / "a.ipynb") and not too_large(tmp_path / "b.ipynb")


def test_only_one_long_function_is_let_through_and_only_in_its_lesson() -> None:
    notebook = sound_notebook()
    long_function(notebook.cells[-1])
    assert not list(short_code(notebook, "01_state_machine"))
    long_function(notebook.cells[-2])
    assert len(list(short_code(notebook, "01_state_machine"))) == 1


# ------------------------------------------------------------------------- the nbval gate can close


def gate(*names: str) -> subprocess.CompletedProcess[str]:
    """Strict nbval with the options of `workbook.py test` over planted notebooks."""
    command = [sys.executable, "-m", "pytest", *workbook.NBVAL, "-p", "no:cacheprovider", "-q", "-rA"]
    paths = [str(BAD / f"{name}.ipynb") for name in names]
    return subprocess.run(
        [*command, *paths], cwd=workbook.ROOT, env=workbook.test_environment(), capture_output=True, text=True
    )


def test_gate_opens_for_a_sound_notebook_and_also_for_a_cleared_one() -> None:
    done = gate("sound", "cleared")
    assert done.returncode == 0, done.stdout
    cleared = nbformat.read(BAD / "cleared.ipynb", as_version=4)
    assert list(executed_in_order(cleared, "cleared")), "nbval passes a cleared notebook; the guard must not"


def test_gate_closes_for_another_output_an_error_and_a_warning() -> None:
    done = gate("other_output", "raises", "warns", "extra_output")
    assert done.returncode == 1, done.stdout
    for name in ("other_output", "raises", "warns", "extra_output"):
        assert re.search(rf"^FAILED .*{name}\.ipynb", done.stdout, flags=re.MULTILINE), f"{name} passed:\n{done.stdout}"
