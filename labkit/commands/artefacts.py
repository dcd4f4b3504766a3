"""Verbs of this group come with the pages that they need."""

from __future__ import annotations

from typing import Any


def add(verbs: Any) -> None:
    """Nothing yet."""
