"""Checks of lesson 06, averages of weights."""

from labkit.lab.checks.ema.borrow import check_borrowed
from labkit.lab.checks.ema.update import check_ema_update

__all__ = ["check_borrowed", "check_ema_update"]
