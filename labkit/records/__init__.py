"""Records of a run, all inside its folder: what was tried, where, with what, and how it went. Lesson 10."""

from labkit.records.arrays import columns
from labkit.records.attempts import Attempt, AttemptLog, read_attempts
from labkit.records.compare import RunDiff, diff_runs
from labkit.records.environment import environment
from labkit.records.ledger import Ledger
from labkit.records.lines import LineLog, Lines, read_lines
from labkit.records.pace import Pace
from labkit.records.runs import Run, note
from labkit.records.stages import STAGES, Profile, Stages, failure_stage
from labkit.records.tails import last_record, truncate_after

__all__ = [
    "STAGES", "Attempt", "AttemptLog", "Ledger", "LineLog", "Lines", "Pace", "Profile", "Run", "RunDiff", "Stages",
    "columns", "diff_runs", "environment", "failure_stage", "last_record", "note", "read_attempts", "read_lines",
    "truncate_after",
]  # fmt: skip
