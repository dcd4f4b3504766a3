"""Checks of lesson 03, microbatch weighting."""

from labkit.lab.checks.microbatch_weighting.accumulate import check_accumulate
from labkit.lab.checks.microbatch_weighting.perplexity import check_perplexity

__all__ = ["check_accumulate", "check_perplexity"]
