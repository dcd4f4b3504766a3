"""Checks of lesson 05, trustworthy files."""

from labkit.lab.checks.trustworthy_files.newest import check_newest
from labkit.lab.checks.trustworthy_files.publish import MOVES, check_publish, shuffled

__all__ = ["MOVES", "check_newest", "check_publish", "shuffled"]
