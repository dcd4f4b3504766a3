"""What the lessons use besides labkit itself: set-up, source display, guesses, plots, widgets, checks. All lessons.

The only part of labkit that imports plotting, widgets or IPython.
"""

from labkit.lab import checks, plots, widgets
from labkit.lab.checks import TODO, Result, my_progress
from labkit.lab.guess import guess
from labkit.lab.progress import Progress
from labkit.lab.setup import setup, this_machine, workspace
from labkit.lab.source import source
from labkit.lab.theme import static
from labkit.lab.widgets import Explorer, choice, slider, tick

__all__ = [
    "TODO",
    "Explorer",
    "Progress",
    "Result",
    "checks",
    "choice",
    "guess",
    "my_progress",
    "plots",
    "setup",
    "slider",
    "source",
    "static",
    "this_machine",
    "tick",
    "widgets",
    "workspace",
]
