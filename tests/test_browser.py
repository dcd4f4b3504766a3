"""Lessons as a learner sees them: JupyterLab in a real browser, run all, move the slider with the keyboard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import nbformat
import pytest

import workbook

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(browser.why_not()), reason=browser.why_not()),
    pytest.mark.filterwarnings("default"),  # a browser that closes slowly warns about sockets that are not ours
]
FIRST = workbook.FIRST_LESSON
LATER = sorted(path.name for path in workbook.NOTEBOOKS.glob("*.ipynb") if path.name != FIRST)

SMALL_NOTEBOOK = [
    "import io\nimport ipywidgets as widgets\nfrom matplotlib.figure import Figure",
    """def picture(n):
    figure, file = Figure(figsize=(4, 2)), io.BytesIO()
    figure.add_subplot().plot(range(n + 2))
    figure.savefig(file, format="png")
    return file.getvalue()""",
    """slider = widgets.IntSlider(2, 0, 9, description="Points")
image, text = widgets.Image(value=picture(2)), widgets.HTML("2 more points")
def show(change):
    image.value, text.value = picture(change.new), f"{change.new} more points"
slider.observe(show, "value")
widgets.VBox([slider, image, text])""",
]

ANSWER = """def first_difference(left, right, first):
    for place, (a, b) in enumerate(zip(left, right)):
        if a != b:
            return first + place
    return None"""
LOADING = {"alone": {}, "workers": {"workers": 2, "start_method": "fork"}}
STOPPED_NOTEBOOK = [
    """import tempfile, time
from pathlib import Path
from labkit import run
from labkit.proof import compare
folder = Path(tempfile.mkdtemp())
with run.start("digits", folder / "straight", updates=3000, save_every=500) as session:
    print(session.train().status)""",
    """def slowly(record):
    time.sleep(0.002)
    if session.update == 20:
        print("started", flush=True)
with run.start("digits", folder / "stopped", updates=3000, save_every=500, **LOADING) as session:
    session.observers.append(slowly)
    outcome = session.train()
print(outcome.status, outcome.reason, outcome.update)""",
    """with run.resume(folder / "stopped") as session:
    outcome = session.train()
print(outcome.status, outcome.update, outcome.updates_done)
print("equal:", compare(folder / "straight", folder / "stopped").equal)""",
    "import shutil\nshutil.rmtree(folder)",
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Server]:
    """JupyterLab over a folder with copies of the lessons as a learner gets them, and one small notebook."""
    root = tmp_path_factory.mktemp("learner")
    workbook.hand_out(workbook.NOTEBOOKS, root / "my_lessons")
    workbook.hand_out(workbook.NOTEBOOKS, root / "by_hand")  # for what is typed: untouched by the other tests
    for name, settings in LOADING.items():
        sources = [source.replace("**LOADING", f"**{settings}") for source in STOPPED_NOTEBOOK]
        write_notebook(root / f"stopped-{name}.ipynb", sources)
    write_notebook(root / "small.ipynb", SMALL_NOTEBOOK)
    write_notebook(root / "raises.ipynb", ["1 + 1", "raise ValueError('on purpose')", "2 + 2"])
    with browser.jupyter_lab(root, tmp_path_factory.mktemp("jupyter")) as server:
        yield server


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with browser.browser() as running:
        yield running


@pytest.fixture
def opened(lab: browser.Server, chrome: Any) -> Iterator[Any]:
    """A function that opens a notebook in a window of its own."""
    contexts = []

    def open_notebook(name: str) -> browser.NotebookPage:
        context = chrome.new_context(viewport={"width": 1280, "height": 1000})
        contexts.append(context)
        notebook = browser.NotebookPage(context.new_page(), lab, name)
        notebook.open()
        return notebook

    yield open_notebook
    for context in contexts:
        context.close()


def write_notebook(path: Path, sources: list[str]) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    notebook.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    nbformat.write(notebook, path)


def use_first_slider(notebook: browser.NotebookPage, name: str) -> None:
    """Focus the first slider, press arrow keys, and see picture and sentence change."""
    cell = next(c for n in notebook.widget_cells() if (c := notebook.show(n)).locator(".noUi-handle").count())
    handle, image = cell.locator(".noUi-handle").first, cell.locator("img").first
    image.wait_for()
    handle.focus()

    def reading() -> tuple[str, list[str]]:
        return image.get_attribute("src"), cell.locator(".widget-html-content").all_inner_texts()

    first = reading()
    size = image.bounding_box()
    assert size and size["width"] > 100 and size["height"] > 60, f"the picture is too small to read: {size}"
    notebook.screenshot(f"{name}-before")
    now = browser.press_until_changed(notebook.page, handle, "ArrowRight", reading)
    if now == first:  # it stood at its right end
        now = browser.press_until_changed(notebook.page, handle, "ArrowLeft", reading)
    notebook.screenshot(f"{name}-after")
    assert now[0] != first[0], "the picture did not change when the slider was moved with the keyboard"
    assert now[1] != first[1], "the sentence did not change when the slider was moved with the keyboard"


def test_a_notebook_runs_and_its_slider_answers_to_the_keyboard(opened: Any) -> None:
    notebook = opened("small.ipynb")
    notebook.run_all()
    assert notebook.problems() == []
    use_first_slider(notebook, "small")


def test_a_cell_that_raises_is_reported(opened: Any) -> None:
    notebook = opened("raises.ipynb")
    notebook.run_all()
    problems = notebook.problems()
    assert any("ValueError: on purpose" in problem for problem in problems)
    assert any("cell 2 did not run" in problem for problem in problems)


def test_no_pop_up_and_no_request_to_another_machine(opened: Any) -> None:
    notebook = opened("small.ipynb")
    notebook.page.wait_for_timeout(3000)  # the news question comes a moment after the start
    assert notebook.page.locator(".jp-Dialog").count() == 0
    toasts = notebook.page.locator(".Toastify__toast").all_inner_texts()
    assert toasts == [], f"JupyterLab asks the learner something: {toasts}"
    assert notebook.elsewhere == []


def test_lesson_00_runs_and_its_slider_answers_to_the_keyboard(opened: Any) -> None:
    if not (workbook.NOTEBOOKS / FIRST).exists():
        pytest.skip(f"notebooks/{FIRST} is not in this checkout")
    notebook = opened(f"my_lessons/{FIRST}")
    notebook.screenshot("lesson-00-opened")
    notebook.run_all()
    assert notebook.problems() == []
    use_first_slider(notebook, "lesson-00")
    assert notebook.elsewhere == []


@pytest.mark.slow
@pytest.mark.parametrize("name", LATER)
def test_every_lesson_runs_in_the_browser(opened: Any, name: str) -> None:
    notebook = opened(f"my_lessons/{name}")
    notebook.run_all()
    assert notebook.problems() == []
    if any(notebook.show(number).locator(".noUi-handle").count() for number in notebook.widget_cells()):
        use_first_slider(notebook, name.removesuffix(".ipynb"))


@pytest.mark.slow
def test_an_exercise_is_solved_by_typing_into_its_cell(opened: Any) -> None:
    notebook = opened(f"by_hand/{FIRST}")
    sources = [cell["source"] for cell in notebook.cells()]
    setup = next(n for n, source in enumerate(sources) if "lab.setup()" in source)
    stub = next(n for n, source in enumerate(sources) if source.startswith("def first_difference(left"))
    check = stub + 1
    assert "lab.TODO" in sources[stub] and "check_first_difference(first_difference)" in sources[check]
    for number in (setup, stub):
        notebook.run_cell(number)
    before = notebook.run_cell(check)
    assert "not attempted" in before and "holds" not in before
    notebook.type_into(stub, ANSWER)
    assert notebook.cells()[stub]["source"] == ANSWER
    notebook.run_cell(stub)
    after = notebook.run_cell(check)
    notebook.show(stub)
    notebook.screenshot("lesson-00-solved")
    assert "first_difference: holds" in after and "not attempted" not in after


@pytest.mark.slow
@pytest.mark.parametrize("loading", LOADING)
def test_the_stop_button_ends_a_run_at_a_boundary_and_the_resume_continues_exactly(opened: Any, loading: str) -> None:
    if loading == "workers" and not hasattr(os, "fork"):
        pytest.skip("no fork on this system")
    notebook = opened(f"stopped-{loading}.ipynb")
    assert notebook.run_cell(0).split() == ["finished"]
    before = notebook.press_run(1)
    notebook.page.locator(".jp-OutputArea-output", has_text="started").wait_for()
    notebook.page.wait_for_timeout(1000)
    notebook.press_stop()
    notebook.wait_run(1, before)
    notebook.screenshot(f"stop-button-{loading}")
    started, status, reason, update = notebook.output(1).split()
    assert (started, status, reason) == ("started", "stopped", "SIGINT")
    assert 20 < int(update) < 3000
    assert notebook.run_cell(2).split() == ["finished", "3000", str(3000 - int(update)), "equal:", "True"]
    notebook.run_cell(3)
    assert notebook.problems() == []
