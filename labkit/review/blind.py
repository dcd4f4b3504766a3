"""What a review without running cannot see, said for the files at hand rather than in general (lesson 10)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

from labkit.review.engine import Outcome
from labkit.review.names import UNKNOWN
from labkit.review.sources import Source, Tree
from labkit.review.view import View

ALWAYS: Final = (
    "Values that come from the command line, the environment or a file when the script runs; a setting there can "
    "switch on what looks off here.",
    "What installed packages do by themselves, among them trackers that start because they are installed and a key is "
    "configured.",
)
KINDS: Final = {
    "open": "Arguments handed on as **kwargs",
    "star": "Names that come from a star import, which may be anything",
    "dynamic": "Modules or attributes chosen by a name at run time",
    "code": "What the text that becomes code says",
    "configured": "Settings that are read from arguments or configuration files",
    "beside": "Files beside it that it imports and that were not reviewed (review the folder to include them)",
}
BY_NAME: Final = {
    "builtins.getattr",
    "importlib.import_module",
    "builtins.__import__",
    "importlib.util.spec_from_file_location",
}
READ_SETTINGS: Final = set(
    "argparse click typer fire hydra omegaconf absl yaml tomllib configparser jsonargparse".split()
)


class BlindSpots:
    """Collects places source by source, so that no syntax tree has to be kept."""

    def __init__(self) -> None:
        self.places: dict[str, list[str]] = {kind: [] for kind in KINDS}

    def add(self, source: Source, outcome: Outcome, alone: bool) -> None:
        """Note what this source hides; alone: it was reviewed without its folder."""
        for _, view in outcome.views:
            where = f"{source.path}:{view.node.lineno}"
            if view.names and view.open_ended:
                self.places["open"].append(where)
            if view.names & BY_NAME and _untold(view):
                self.places["dynamic"].append(where)
        self.places["star"] += [f"{source.path} ({module})" for module in outcome.facts.names.stars]
        self.places["code"] += [f"{f.path}:{f.line}" for f in outcome.findings if f.rule == "dynamic-code"]
        if any(module.split(".")[0] in READ_SETTINGS for _, module, _ in outcome.facts.imports):
            self.places["configured"].append(source.path)
        if alone:
            self.places["beside"] += sorted(set(_beside(source, outcome)))

    def told(self, tree: Tree) -> tuple[str, ...]:
        """Sentences, the general ones first."""
        found = [
            *ALWAYS,
            *(f"{text}: {_some(self.places[kind])}." for kind, text in KINDS.items() if self.places[kind]),
        ]
        if tree.others:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(tree.others.items()))
            found.append(f"Files of other kinds were not read: {kinds}.")
        if tree.skipped:
            left = ", ".join(f"{count} {name}" for name, count in sorted(tree.skipped.items()))
            found.append(f"Folders were left out: {left}.")
        return tuple(found)


def _untold(view: View) -> bool:
    if "builtins.getattr" in view.names:
        return view.value("name", 1) is UNKNOWN
    return not isinstance(view.value("name", 0), str)


def _beside(source: Source, outcome: Outcome) -> Iterator[str]:
    """Modules next to the reviewed file that it imports."""
    for _, module, node in outcome.facts.imports:
        plain = module.strip(".")
        names = [plain] if plain or not isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        for first in (name.split(".")[0] for name in names):
            for candidate in (f"{first}.py", f"{first}/__init__.py"):
                if first and (source.file.parent / candidate).is_file() and candidate != source.file.name:
                    yield candidate


def _some(items: Iterable[str]) -> str:
    unique = list(dict.fromkeys(items))
    return ", ".join(unique[:4]) + (f" and {len(unique) - 4} more" if len(unique) > 4 else "")
