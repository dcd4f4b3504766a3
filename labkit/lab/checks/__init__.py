"""The checks of all exercises, one page a lesson; `lab.checks.check_x(answer)` says whether an answer holds."""

from labkit.lab.checks.checkpointing import check_restore, check_which_piece
from labkit.lab.checks.frame import TODO, Check, Result, Verdict
from labkit.lab.checks.microbatch_weighting import check_accumulate, check_perplexity
from labkit.lab.checks.passed import ProgressTable, table
from labkit.lab.checks.seeding import check_evaluate, check_verdict
from labkit.lab.checks.state_machine import check_update, check_what_moved

PAGES: tuple[Check, ...] = (
    *(check_update, check_what_moved, check_evaluate, check_verdict),
    *(check_accumulate, check_perplexity, check_which_piece, check_restore),
)


def my_progress() -> ProgressTable:
    """Every exercise of the workbook, and which ones were passed in the learner's own copies."""
    return table((one.lesson, one.exercise, one.minutes) for one in PAGES)


__all__ = ["PAGES", "TODO", "Check", "ProgressTable", "Result", "Verdict", "my_progress"]
__all__ += ["check_accumulate", "check_evaluate", "check_perplexity", "check_restore", "check_update", "check_verdict"]
__all__ += ["check_what_moved", "check_which_piece"]
