"""Pictures as pure functions of plain data: each gets a frozen dataclass and returns a picture made without pyplot.

Every picture has a sentence function beside it that says in words, from the same data, what is to be seen.
"""

from labkit.lab.plots.average import AveragePlot, average, average_sentence, shares
from labkit.lab.plots.budget import BudgetPlot, budget, budget_sentence
from labkit.lab.plots.files import (
    FlipsPlot,
    PublicationPlot,
    flips,
    flips_sentence,
    publication,
    publication_sentence,
)
from labkit.lab.plots.moves import MovesPlot, moves_sentence, update_moves
from labkit.lab.plots.norms import NormsPlot, norms, norms_sentence
from labkit.lab.plots.resume import Difference, ResumePlot, resume_plot, resumed_against_uninterrupted, sentence
from labkit.lab.plots.streams import StreamsPlot, streams, streams_sentence
from labkit.lab.plots.vote import VotePlot, vote, vote_sentence

__all__ = ["AveragePlot", "BudgetPlot", "Difference", "FlipsPlot", "MovesPlot", "NormsPlot", "PublicationPlot"]
__all__ += ["ResumePlot", "StreamsPlot", "VotePlot", "average", "average_sentence", "budget", "budget_sentence"]
__all__ += ["flips", "flips_sentence", "moves_sentence", "norms", "norms_sentence", "publication"]
__all__ += ["publication_sentence", "resume_plot", "resumed_against_uninterrupted", "sentence", "shares", "streams"]
__all__ += ["streams_sentence", "update_moves", "vote", "vote_sentence"]
