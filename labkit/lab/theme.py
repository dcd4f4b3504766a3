"""How every picture looks: one size, colours that stay apart for colour-blind readers, no pyplot. All lessons.

A colour never stands alone: each line style has its own colour, dash and marker.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from PIL import Image

# Okabe and Ito, "Color Universal Design" (2008).
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, PALE = "#6b6b6b", "#dcdcdc"

WIDTH, HEIGHT, DPI = 8.0, 4.4, 100
TEXT = 9.5


@dataclass(frozen=True)
class Line:
    """A line that is told apart by colour, by dash and by marker."""

    color: str
    dash: str | tuple[int, tuple[int, ...]]
    marker: str
    width: float = 1.8

    def style(self, points: int, filled: bool = True) -> dict[str, Any]:
        """Keywords for Axes.plot; about a dozen markers however many points there are."""
        every = max(1, points // 12)
        face = self.color if filled else "white"
        return {
            "color": self.color,
            "linestyle": self.dash,
            "marker": self.marker,
            "markevery": every,
            "markersize": 5.5,
            "linewidth": self.width,
            "markerfacecolor": face,
            "markeredgecolor": self.color,
        }


STRAIGHT = Line(BLUE, "-", "o", 2.4)
RESUMED = Line(VERMILION, (0, (4, 2)), "s", 1.8)
LINES = (
    STRAIGHT,
    RESUMED,
    Line(GREEN, (0, (1, 1)), "^"),
    Line(PURPLE, (0, (6, 2, 1, 2)), "D"),
    Line(ORANGE, (0, (8, 2)), "v"),
)
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++")
FILLS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION)


class Picture(Figure):
    """A Figure made without pyplot that shows itself in a notebook as PNG.

    name says what is drawn and reads the same on any machine: stored notebooks are compared by it.
    alt says what is seen, may hold measured numbers, and travels as the alt text of the image.
    """

    name: str = ""
    alt: str = ""

    def _repr_html_(self) -> None:
        return None

    def __repr__(self) -> str:
        return f"[picture: {self.name}]"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        data = {"image/png": png(self), "text/plain": repr(self)}
        return data, {"image/png": {"alt": self.alt or self.name}}


def picture(name: str, alt: str = "", height: float = HEIGHT, width: float = WIDTH) -> Picture:
    """An empty picture of the usual size (inches); see Picture for name and alt."""
    figure = Picture(figsize=(width, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    figure.name, figure.alt = name, alt
    return figure


def panel(
    figure: Figure, box: tuple[float, float, float, float], title: str = "", x: str = "", y: str = "", log: bool = False
) -> Axes:
    """A panel at box = (left, bottom, width, height) in parts of the picture.

    Places are given by hand: automatic layout costs more than drawing, and pictures are redrawn under a slider.
    """
    axes = figure.add_axes(box)
    if log:
        axes.set_yscale("log")
        log_ticks(axes, "y")
    else:
        axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=TEXT - 1, length=3)
    axes.grid(axis="y", color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)
    if title:
        axes.set_title(title, fontsize=TEXT, loc="left", pad=5, y=1.0, fontweight="bold")
    axes.set_xlabel(x, fontsize=TEXT, labelpad=2)
    axes.set_ylabel(y, fontsize=TEXT, labelpad=3)
    return axes


def log_ticks(axes: Axes, which: str) -> None:
    """A few decades in plain numbers, no minor ticks: both are most of the drawing time of a log axis."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: _decade(value)))
    axis.set_major_locator(LogLocator(numticks=5))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def fit(axes: Axes, *values: np.ndarray, below: float = 2.0, above: float = 2.0) -> None:
    """Limits of a log axis around the finite positive values, with room by a factor; more ticks on a short one."""
    every = np.concatenate([np.asarray(v, dtype=float).ravel() for v in values])
    every = every[np.isfinite(every) & (every > 0)]
    low, high = (float(every.min()) / below, float(every.max()) * above) if every.size else (0.1, 10.0)
    axes.set_ylim(low, high)
    if high / low < 40:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))


def _decade(value: float) -> str:
    """0.01 as such, 1e-06 as 10⁻⁶; plain characters, since mathematical typesetting is slow."""
    if 1e-3 <= value < 1e5 or value <= 0:
        return f"{value:g}"
    return "10" + str(round(math.log10(value))).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def headline(figure: Figure, text: str) -> None:
    """The conclusion, above the picture, wrapped to its width."""
    figure.text(0.012, 0.985, wrapped(text), fontsize=TEXT + 0.5, va="top", ha="left", linespacing=1.25)


def wrapped(text: str, width: int = 108) -> str:
    """text broken into lines of at most `width` characters."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


def legend(axes: Axes, **options: Any) -> None:
    """A legend without a frame."""
    axes.legend(**{"fontsize": TEXT - 1, "frameon": False, "handlelength": 3.2, **options})


def png(figure: Figure, quick: bool = False) -> bytes:
    """The picture as PNG bytes; the same bytes for the same data on one machine (no date, no version inside).

    quick: larger bytes, sooner (for pictures that are redrawn under a slider and not stored).
    """
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    return _encoded(image, compress_level=1) if quick else _small(image)


def shrunk(data: bytes) -> bytes:
    """PNG bytes in a third of the size, for what is stored in a notebook."""
    return _small(Image.open(io.BytesIO(data)).convert("RGB"))


def _small(image: Image.Image) -> bytes:
    """A hundred and twenty-eight colours are enough for a diagram; the largest coverage keeps thin lines apart."""
    return _encoded(image.quantize(128, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE), optimize=True)


def _encoded(image: Image.Image, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format="png", dpi=(DPI, DPI), **options)
    return out.getvalue()


def svg(figure: Figure) -> bytes:
    """The picture as SVG, without a date."""
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def static(figure: Figure, name: str = "", alt: str = "") -> Picture:
    """Any matplotlib Figure as a picture that shows itself in a notebook with alt text; the static twin of a widget.

    A Picture is returned as it is (with the new name and alt, if given); another Figure is drawn once, as an image.
    """
    if isinstance(figure, Picture):
        figure.name, figure.alt = name or figure.name, alt or figure.alt
        return figure
    width, height = figure.get_size_inches()
    twin = picture(name or "a figure without a name", alt, height=height, width=width)
    axes = twin.add_axes((0, 0, 1, 1))
    axes.axis("off")
    axes.imshow(np.asarray(Image.open(io.BytesIO(png(figure, quick=True)))), aspect="auto")
    return twin
