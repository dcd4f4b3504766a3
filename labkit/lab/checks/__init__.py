"""The checks of all exercises, a folder a lesson; `lab.checks.check_x(answer)` says whether an answer holds."""

from labkit.lab.checks.budgeting import check_interval, check_plan, check_spent
from labkit.lab.checks.checkpointing import check_restore, check_which_piece
from labkit.lab.checks.ema import check_borrowed, check_ema_update
from labkit.lab.checks.frame import Check
from labkit.lab.checks.gradient_norms import check_clip, check_guarded_update
from labkit.lab.checks.microbatch_weighting import check_accumulate, check_perplexity
from labkit.lab.checks.passed import ProgressTable, table
from labkit.lab.checks.result import TODO, Result, Verdict
from labkit.lab.checks.seeding import check_evaluate, check_verdict
from labkit.lab.checks.start_here import check_first_difference
from labkit.lab.checks.state_machine import check_update, check_what_moved
from labkit.lab.checks.trustworthy_files import check_newest, check_publish

ALL: tuple[Check, ...] = (
    check_first_difference,
    *(check_update, check_what_moved, check_evaluate, check_verdict, check_accumulate, check_perplexity),
    *(check_which_piece, check_restore, check_publish, check_newest, check_ema_update, check_borrowed),
    *(check_clip, check_guarded_update, check_plan, check_interval, check_spent),
)


def my_progress() -> ProgressTable:
    """Every exercise of the workbook, and which ones were passed in the learner's own copies."""
    return table((one.lesson, one.exercise, one.minutes) for one in ALL)


__all__ = ["ALL", "TODO", "Check", "ProgressTable", "Result", "Verdict", "my_progress"]
__all__ += ["check_accumulate", "check_borrowed", "check_clip", "check_ema_update", "check_evaluate"]
__all__ += ["check_first_difference"]
__all__ += ["check_guarded_update", "check_interval", "check_newest", "check_perplexity", "check_plan", "check_publish"]
__all__ += ["check_restore", "check_spent", "check_update", "check_verdict", "check_what_moved", "check_which_piece"]
