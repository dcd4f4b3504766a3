"""Checks of lesson 08, budgeting."""

from labkit.lab.checks.budgeting.interval import check_interval
from labkit.lab.checks.budgeting.plan import check_plan
from labkit.lab.checks.budgeting.spent import check_spent

__all__ = ["check_interval", "check_plan", "check_spent"]
