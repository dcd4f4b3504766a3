"""Before a long run: a short measured sample, and the arithmetic from it to hours, money, memory and disk. Lesson 08.

seconds = updates x seconds per update + evaluations + saves; device hours = hours x devices; cost = device hours x
price. Everything measured is measured here, on this machine, now. arithmetic.py counts, measure.py measures,
interval.py says how often to save, check.py compares a plan with what happened.
"""

from labkit.plan.arithmetic import ending, examples_in, planned_updates, updates_per_epoch
from labkit.plan.check import Check, check
from labkit.plan.interval import Interval, save_interval
from labkit.plan.measure import Measured, memory_by_kind
from labkit.plan.planning import Plan, plan

__all__ = [
    "Check", "Interval", "Measured", "Plan", "check", "ending", "examples_in", "memory_by_kind", "plan",
    "planned_updates", "save_interval", "updates_per_epoch",
]  # fmt: skip
