"""Checks of lesson 02, seeding."""

from labkit.lab.checks.seeding.evaluate import check_evaluate
from labkit.lab.checks.seeding.verdict import better, check_verdict, placebo

__all__ = ["better", "check_evaluate", "check_verdict", "placebo"]
