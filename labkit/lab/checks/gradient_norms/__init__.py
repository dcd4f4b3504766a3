"""Checks of lesson 07, gradient norms."""

from labkit.lab.checks.gradient_norms.clip import check_clip
from labkit.lab.checks.gradient_norms.guard import check_guarded_update
from labkit.lab.checks.gradient_norms.guarded import Guarded, good, infinite, root_at_zero, scene

__all__ = ["Guarded", "check_clip", "check_guarded_update", "good", "infinite", "root_at_zero", "scene"]
