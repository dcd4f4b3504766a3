"""Checks of lesson 04, checkpointing, and the small recipe that they work on."""

from labkit.lab.checks.checkpointing.put_it_back import check_restore
from labkit.lab.checks.checkpointing.which_piece import PIECES, Puzzle, check_which_piece, puzzles
from labkit.lab.checks.checkpointing.workshop import Run, Workshop

__all__ = ["PIECES", "Puzzle", "Run", "Workshop", "check_restore", "check_which_piece", "puzzles"]
