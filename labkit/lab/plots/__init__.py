"""Pictures as pure functions of plain data: each gets a frozen dataclass and returns a picture made without pyplot.

Every picture has a `sentence` function beside it that says in words, from the same data, what is to be seen.
"""

from labkit.lab.plots.resume import Difference, ResumePlot, resume_plot, resumed_against_uninterrupted, sentence

__all__ = ["Difference", "ResumePlot", "resume_plot", "resumed_against_uninterrupted", "sentence"]
