"""The settings of one run: flat, frozen, resolved, with a fingerprint. Lesson 04 shows what it protects.

Three sources, later ones win: the defaults, what the recipe prefers, what the user set. Read run_config.py first (the
table of settings), then values.py (by type) and limits.py (what is refused).
"""

from labkit.config.run_config import (
    ENVIRONMENT_FIELDS,
    GOALS,
    MAY_CHANGE,
    OptionValue,
    RunConfig,
    field_names,
    from_dict,
    parse,
    unknown_name,
)
from labkit.config.values import parse_bool

__all__ = [
    "ENVIRONMENT_FIELDS",
    "GOALS",
    "MAY_CHANGE",
    "OptionValue",
    "RunConfig",
    "field_names",
    "from_dict",
    "parse",
    "parse_bool",
    "unknown_name",
]
