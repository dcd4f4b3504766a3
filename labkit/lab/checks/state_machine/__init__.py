"""Checks of lesson 01, the training state machine."""

from labkit.lab.checks.state_machine.update import check_update
from labkit.lab.checks.state_machine.what_moved import QUANTITIES, SITUATIONS, check_what_moved, what_moves

__all__ = ["QUANTITIES", "SITUATIONS", "check_update", "check_what_moved", "what_moves"]
