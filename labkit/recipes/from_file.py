"""A user's file as a module that every process can import, also a worker that unpickles its data sets. Lesson 15.

A worker that is started afresh rebuilds a data set by importing the module of its class. The name given here spells the
file's path (`labkit.recipes.from_file._2fhome_2fme_2fmine_2epy`), and this package knows how to read it back.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from labkit.errors import RecipeError

__path__: list[str] = []  # lets the import system ask the finder below for what is "in" this page


def load(path: str | Path) -> ModuleType:
    """Run the file and return its module; an unchanged file that was loaded before is not run again.

    Its folder joins the end of sys.path, so that it may import its neighbours.
    Raises RecipeError for a missing file; errors inside the file come through as they are.
    """
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise RecipeError(f"there is no file {file}", "a Python file that holds the recipe", "check the path")
    content = hashlib.sha256(file.read_bytes()).hexdigest()
    name = module_name(file)
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__labkit_digest__", None) == content:
        return known
    sys.modules.pop(name, None)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    module = importlib.import_module(name)
    module.__dict__["__labkit_digest__"] = content
    return module


def module_name(file: Path) -> str:
    """The name under which a file is imported: the same in every process."""
    spelled = re.sub(r"[^A-Za-z0-9]", lambda found: "".join(f"_{byte:02x}" for byte in found[0].encode()), str(file))
    return f"{__name__}.{spelled}"


def file_of(name: str) -> Path:
    """The file that module_name() spelled."""
    spelled = name.removeprefix(__name__ + ".").encode()
    return Path(re.sub(rb"_([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), spelled).decode())


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Always from the source: a cached .pyc passes for fresh when a file of equal size is saved within a second."""
        return self.source_to_code(self.get_data(self.path), self.path)


class _Finder:
    """Finds `labkit.recipes.from_file.<spelled path>`, here and in worker processes."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(__name__ + "."):
            return None
        file = file_of(name)
        if not file.is_file():
            return None
        return importlib.util.spec_from_file_location(name, file, loader=_Loader(name, str(file)))


if _Finder not in sys.meta_path:
    sys.meta_path.append(_Finder)
