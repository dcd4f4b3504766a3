"""Every error that labkit raises on purpose: what was found, what was expected, what to do next.

All of them derive from LabkitError, so `except LabkitError` catches what labkit diagnosed and nothing else.
"""

from __future__ import annotations


class LabkitError(Exception):
    """A fault that labkit recognised.

    found, expected and do are whole phrases; str() joins those that are given.
    """

    def __init__(self, found: str, expected: str = "", do: str = "") -> None:
        super().__init__(found, expected, do)
        self.found, self.expected, self.do = found, expected, do

    def __str__(self) -> str:
        text = _sentence(self.found)
        if self.expected:
            text += " Expected: " + _sentence(self.expected)
        if self.do:
            text += " What to do: " + _sentence(self.do)
        return text


def _sentence(phrase: str) -> str:
    phrase = phrase.strip()
    return phrase if phrase.endswith((".", "!", "?", ":")) else phrase + "."


class ConfigError(LabkitError):
    """A setting has an unknown name or a value that cannot be used."""


class DataError(LabkitError):
    """A data file is missing, changed, or a data set does not hold what it promised."""


class RecipeError(LabkitError):
    """A recipe does not keep its contract."""


class RandomnessError(LabkitError):
    """A random stream is missing, of another kind, or shared where it must not be."""


class WeightingError(LabkitError):
    """A sum and its count do not belong together."""


class PrecisionError(LabkitError):
    """A precision or numeric policy cannot be used here."""


class EmaError(LabkitError):
    """A weight average was used in a way that would lose weights."""


class IdentityError(LabkitError):
    """A checkpoint belongs to another config, architecture or data set."""


class StateError(LabkitError):
    """A saved state does not fit the live objects."""


class TornStateError(LabkitError):
    """Live objects were left half updated; only a reload from a checkpoint helps."""


class NonfiniteError(LabkitError):
    """A loss or gradient is not finite, or too many attempts in a row were skipped."""


class StorageError(LabkitError):
    """The disk refused: full, read-only, gone, or a file too large."""


class CheckpointError(LabkitError):
    """A checkpoint is damaged, incomplete, of a foreign format, or not there."""


class RunLockedError(LabkitError):
    """Another process holds the run folder."""


class RunFolderError(LabkitError):
    """A run folder is in the way, missing, or not a run folder."""


class RecordsError(LabkitError):
    """A record file cannot be read or written."""


class ProofError(LabkitError):
    """A comparison or proof cannot be made."""


class ExportError(LabkitError):
    """An artefact is of another kind, does not fit its base, or failed its own check."""


class PlanError(LabkitError):
    """A plan cannot be made from what was given."""


class ReviewError(LabkitError):
    """A file to review cannot be read."""
