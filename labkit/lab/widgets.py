"""One small frame for every widget: controls, a picture, and a sentence that says what it shows. All lessons.

No Output widget and no display handle: the picture is the value of an Image widget, so nothing flickers, a stored
notebook can be compared strictly, and it shows a picture even where no kernel runs.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ipywidgets
import traitlets
from matplotlib.figure import Figure

from labkit.lab import theme

_LABEL = {"description_width": "initial"}


def slider(label: str, values: Sequence[Any], start: Any = None) -> ipywidgets.SelectionSlider | ipywidgets.IntSlider:
    """A slider over given values; arrow keys move it, and it answers when it comes to rest.

    Whole numbers in a row get a number box as well.
    """
    whole = list(values)
    start = whole[0] if start is None else start
    layout = ipywidgets.Layout(width="420px")
    options = {"description": label, "continuous_update": False, "style": _LABEL, "layout": layout, "value": start}
    if len(whole) > 1 and all(isinstance(v, int) for v in whole) and whole == list(range(whole[0], whole[-1] + 1)):
        return ipywidgets.IntSlider(min=whole[0], max=whole[-1], **options)
    return ipywidgets.SelectionSlider(options=[(v if isinstance(v, str) else f"{v:g}", v) for v in whole], **options)


def choice(label: str, options: Sequence[Any], start: Any = None) -> ipywidgets.Dropdown:
    """A drop-down; entries are values, or (text, value) pairs."""
    extra = {} if start is None else {"value": start}
    return ipywidgets.Dropdown(
        options=list(options), description=label, style=_LABEL, layout=ipywidgets.Layout(width="auto"), **extra
    )


def tick(label: str, start: bool = False) -> ipywidgets.Checkbox:
    """A box to tick."""
    return ipywidgets.Checkbox(value=start, description=label, indent=False, layout=ipywidgets.Layout(width="auto"))


class _Image(ipywidgets.Image):
    """An image that can have a tooltip: ipywidgets 8 reads `description` before it sets one, and fails without it."""

    description = traitlets.Unicode("").tag(sync=True)


class Explorer:
    """Controls above a picture above one sentence.

    controls: name -> control, a slider and a drop-down or two; more: further controls behind a fold.
    draw(**values) -> Figure and tell(**values) -> str get the value of each control by its name; both are called once
    per setting and remembered. An error in them appears as a red line; the last good picture stays.
    The first drawing happens at once, and an error there is raised: a broken widget must not look like an empty one.
    """

    def __init__(
        self,
        controls: Mapping[str, Any],
        draw: Callable[..., Figure],
        tell: Callable[..., str],
        *,
        title: str = "",
        more: Mapping[str, Any] | None = None,
        fold: str = "More",
        save_to: Path | str | None = None,
        remember: int = 300,
    ) -> None:
        self.title, self.draw, self.tell, self.remember = title, draw, tell, remember
        self.controls: dict[str, Any] = {**controls, **(more or {})}
        self.save_to = Path(save_to) if save_to is not None else Path("figures")
        self._memo: dict[tuple[Any, ...], tuple[bytes, str]] = {}
        picture, said = self._made(self.values)
        natural = ipywidgets.Layout(max_width="100%", align_self="flex-start")  # stretched, its text would blur
        self.image = _Image(value=picture, format="png", tooltip=said, layout=natural)
        self.sentence = ipywidgets.HTML(_status(said))
        self.trouble = ipywidgets.HTML("")
        self.format = ipywidgets.Dropdown(
            options=["PNG", "SVG"], description="as", style=_LABEL, layout=ipywidgets.Layout(width="auto")
        )
        self.button = ipywidgets.Button(description="Save figure", tooltip="Write this figure to a file")
        self.saved = ipywidgets.HTML("")
        self.button.on_click(self._save)
        for control in self.controls.values():
            control.observe(self._react, names="value")
        parts = [
            ipywidgets.HBox(
                list(controls.values()), layout=ipywidgets.Layout(flex_flow="row wrap", grid_gap="4px 20px")
            )
        ]
        if more:
            inside = ipywidgets.HBox(
                list(more.values()), layout=ipywidgets.Layout(flex_flow="row wrap", grid_gap="2px 20px")
            )
            parts.append(ipywidgets.Accordion([inside], titles=[fold], selected_index=None))
        last = ipywidgets.HBox([self.button, self.format, self.saved])
        self.box = ipywidgets.VBox([*parts, self.image, self.sentence, self.trouble, last])

    @property
    def values(self) -> dict[str, Any]:
        """What the controls stand at."""
        return {name: control.value for name, control in self.controls.items()}

    def _made(self, values: dict[str, Any]) -> tuple[bytes, str]:
        key = tuple(values.values())
        if key not in self._memo:
            if len(self._memo) >= self.remember:
                self._memo.pop(next(iter(self._memo)))
            self._memo[key] = (theme.png(self.draw(**values), quick=True), str(self.tell(**values)))
        return self._memo[key]

    def _react(self, _change: object) -> None:
        try:
            picture, said = self._made(self.values)
        except Exception as fault:  # a callback's exception is shown nowhere in JupyterLab; here it becomes a line
            self.trouble.value = _alert(fault)
            return
        self.trouble.value = ""
        self.image.value, self.image.tooltip = picture, said
        self.sentence.value = _status(said)

    def _save(self, _button: object) -> None:
        try:
            path = self.save(self.format.value)
        except Exception as fault:  # as above
            self.trouble.value = _alert(fault)
            return
        self.saved.value = f'<span role="status">Saved to {html.escape(str(path))}</span>'

    def save(self, kind: str = "PNG") -> Path:
        """Write the figure as it stands into the folder `save_to` under a name not used yet; returns the path."""
        figure = self.draw(**self.values)
        data = theme.svg(figure) if kind.upper() == "SVG" else theme.png(figure)
        self.save_to.mkdir(parents=True, exist_ok=True)
        stem = "-".join(self.title.lower().split()) or "figure"
        stem = "".join(c for c in stem if c.isalnum() or c == "-")
        number = 1
        while (path := self.save_to / f"{stem}-{number:03d}.{kind.lower()}").exists():
            number += 1
        path.write_bytes(data)
        return path

    def __repr__(self) -> str:
        """Title and controls with their values: words that read the same on any machine."""
        settings = "".join(f"\n  {control.description}: {_shown(control)}" for control in self.controls.values())
        return f"[widget: {self.title or 'explorer'}; run this cell to use it]{settings}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = dict(self.box._repr_mimebundle_() or {})
        bundle["text/plain"] = repr(self)
        picture, said = self._made(self.values)
        bundle["image/png"] = theme.shrunk(picture)
        return bundle, {"image/png": {"alt": said}}


def _shown(control: Any) -> str:
    return str(getattr(control, "label", None) or control.value)


def _status(said: str) -> str:
    return f'<p role="status" aria-live="polite" style="line-height:1.4;margin:4px 0">{html.escape(said)}</p>'


def _alert(fault: Exception) -> str:
    words = html.escape(f"error: {type(fault).__name__}: {fault}"[:600])
    return f'<p role="alert" style="color:#b00020;font-weight:bold;margin:4px 0">{words}</p>'
