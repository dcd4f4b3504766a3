"""Check of lesson 00, start here."""

from labkit.lab.checks.start_here.detector import check_first_difference

__all__ = ["check_first_difference"]
