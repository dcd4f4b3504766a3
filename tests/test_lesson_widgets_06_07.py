"""The widgets of lessons 06 and 07, built by the lessons' own cells and moved by setting traits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import nbformat
import pytest

import workbook
from labkit.lab.widgets import Explorer

SECONDS = 0.25  # 0.15 on a quiet machine; CPU seconds grow when cores are shared


def explorer(lesson: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Explorer:
    """Run the set-up cell and the widget's cell of a lesson, nothing else; the widget is the cell's last value."""
    monkeypatch.chdir(tmp_path)
    cells = nbformat.read(workbook.NOTEBOOKS / f"{lesson}.ipynb", as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    names: dict[str, Any] = {}
    exec(code[0], names)
    made = next(source for source in code if "lab.Explorer(" in source)
    exec(made.replace("lab.Explorer(", "widget = lab.Explorer("), names)
    return names["widget"]


def quickest_redraw(widget: Explorer, name: str, values: list[Any]) -> float:
    """The best of the CPU seconds that these moves took: noise only adds."""
    taken = []
    for value in values:
        begin = time.process_time()
        widget.controls[name].value = value
        taken.append(time.process_time() - begin)
        assert widget.trouble.value == ""
    return min(taken)


def test_the_slider_of_lesson_06_answers_quickly_and_says_when_the_count_decides_nothing(monkeypatch, tmp_path):
    widget = explorer("06_ema", monkeypatch, tmp_path)
    assert quickest_redraw(widget, "decay", [0.9, 0.98, 0.99, 0.9999]) < SECONDS
    widget.controls["lost"].value = "count"
    assert "without warm-up the count decides nothing" in widget.sentence.value
    widget.controls["warmup"].value = True
    assert "with nothing lost" in widget.sentence.value and widget.trouble.value == ""


def test_the_slider_of_lesson_07_answers_quickly_and_no_threshold_saves_from_an_infinity(monkeypatch, tmp_path):
    widget = explorer("07_gradient_norms", monkeypatch, tmp_path)
    assert quickest_redraw(widget, "threshold", [1e-8, 0.01, 1.0, 100.0]) < SECONDS
    widget.controls["event"].value = "infinity"
    for threshold in (1e-8, 1.0, 100.0):
        widget.controls["threshold"].value = threshold
        assert "the weights are lost" in widget.sentence.value
    widget.controls["guard"].value = True
    assert "was skipped" in widget.sentence.value and widget.trouble.value == ""
