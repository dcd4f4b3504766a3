"""Promises of the widget frame, tested by setting traits; a browser test drives the same widget with keys."""

from __future__ import annotations

import json
import struct
import subprocess
import sys

import pytest

from labkit import lab
from labkit.lab import theme
from labkit.lab.widgets import Explorer


def drawn(calls: list | None = None):
    def draw(stop, lost, **rest):
        if calls is not None:
            calls.append((stop, lost))
        if lost == "broken":
            raise ValueError("no such <piece>")
        figure = theme.picture("p", "a")
        theme.panel(figure, (0.1, 0.1, 0.8, 0.8)).plot([0, stop])
        return figure

    return draw


def explorer(tmp_path, calls=None, **options) -> Explorer:
    controls = {
        "stop": lab.slider("stop after", range(60, 81), 70),
        "lost": lab.choice("lost", ["nothing", "optimizer", "broken"]),
    }
    return Explorer(
        controls,
        drawn(calls),
        lambda stop, lost, **_: f"Stopped after {stop}, {lost} lost.",
        title="Resumed against uninterrupted",
        save_to=tmp_path / "figures",
        **options,
    )


def test_moving_a_control_changes_picture_sentence_and_tooltip(tmp_path):
    widget = explorer(tmp_path)
    before = bytes(widget.image.value)
    widget.controls["stop"].value = 75
    assert bytes(widget.image.value) != before and bytes(widget.image.value).startswith(b"\x89PNG")
    assert "Stopped after 75, nothing lost." in widget.sentence.value and 'role="status"' in widget.sentence.value
    assert widget.image.tooltip == "Stopped after 75, nothing lost."


def test_a_setting_seen_before_is_not_drawn_again(tmp_path):
    calls: list = []
    widget = explorer(tmp_path, calls)
    for stop in (71, 70, 71, 70):
        widget.controls["stop"].value = stop
    assert calls == [(70, "nothing"), (71, "nothing")]


def test_what_is_remembered_is_bounded(tmp_path):
    widget = explorer(tmp_path, remember=3)
    for stop in range(60, 70):
        widget.controls["stop"].value = stop
    assert len(widget._memo) == 3


def test_an_error_in_a_callback_is_a_visible_line_and_the_last_good_picture_stays(tmp_path):
    widget = explorer(tmp_path)
    good = bytes(widget.image.value)
    widget.controls["lost"].value = "broken"
    assert "error: ValueError: no such &lt;piece&gt;" in widget.trouble.value and 'role="alert"' in widget.trouble.value
    assert bytes(widget.image.value) == good
    widget.controls["lost"].value = "nothing"
    assert widget.trouble.value == ""


def test_a_widget_that_cannot_draw_at_all_raises_at_once(tmp_path):
    with pytest.raises(ValueError, match="piece"):
        Explorer({"stop": lab.slider("stop", [1]), "lost": lab.choice("lost", ["broken"])}, drawn(), lambda **_: "")


def test_controls_are_labelled_and_answer_when_they_come_to_rest(tmp_path):
    widget = explorer(tmp_path, more={"buffers": lab.tick("buffers lost")}, fold="More than one")
    assert all(control.description for control in widget.controls.values())
    assert widget.controls["stop"].continuous_update is False
    assert set(widget.values) == {"stop", "lost", "buffers"}
    decades = lab.slider("threshold", [0.1, 1.0, 10.0], 1.0)
    assert decades.continuous_update is False and decades.value == 1.0


def test_the_figure_is_saved_as_png_or_svg_and_the_widget_says_where(tmp_path):
    widget = explorer(tmp_path)
    widget.button.click()
    widget.format.value = "SVG"
    widget.button.click()
    widget.button.click()
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert names == [f"resumed-against-uninterrupted-{n}" for n in ("001.png", "001.svg", "002.svg")]
    assert "resumed-against-uninterrupted-002.svg" in widget.saved.value
    assert b"<svg" in (tmp_path / "figures" / names[1]).read_bytes()


def test_a_failed_save_is_shown(tmp_path):
    (tmp_path / "figures").write_text("in the way")
    widget = explorer(tmp_path)
    widget.button.click()
    assert "error:" in widget.trouble.value


def test_stored_output_holds_a_picture_and_words_that_are_the_same_on_any_machine(tmp_path):
    widget = explorer(tmp_path)
    data, metadata = widget._repr_mimebundle_()
    assert set(data) == {"text/plain", "image/png", "application/vnd.jupyter.widget-view+json"}
    assert data["text/plain"] == (
        "[widget: Resumed against uninterrupted; run this cell to use it]\n  stop after: 70\n  lost: nothing"
    )
    assert metadata["image/png"]["alt"] == "Stopped after 70, nothing lost."
    assert struct.unpack(">II", data["image/png"][16:24]) == (800, 440)


def test_text_in_the_sentence_is_never_read_as_html():
    widget = Explorer(
        {"stop": lab.slider("stop", [1]), "lost": lab.choice("lost", ["nothing"])}, drawn(), lambda **_: "a < b & c"
    )
    assert "a &lt; b &amp; c" in widget.sentence.value


NOTEBOOK = [
    "from labkit import lab\nfrom labkit.lab import theme\nlab.setup(threads=1)",
    "def draw(n):\n    figure = theme.picture('a line')\n"
    "    theme.panel(figure, (.1, .1, .8, .8)).plot([0, n])\n    return figure",
    "lab.Explorer({'n': lab.slider('size', range(5))}, draw, lambda n: f'It is {n}.', title='A line')",
    "draw(3)",
    "lab.guess(None, 3)\nlab.my_progress()",
    "lab.source(lab.guess)",
]


@pytest.mark.slow
def test_a_stored_widget_notebook_passes_strict_nbval(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in NOTEBOOK])
    NotebookClient(book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    book.metadata.pop("widgets", None)
    path = tmp_path / "lesson.ipynb"
    nbformat.write(book, path)
    told = [out for cell in book.cells for out in cell.outputs]
    assert not [out for out in told if out.get("name") == "stderr"], json.dumps(told)[:2000]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--nbval",
        "--nbval-current-env",
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
