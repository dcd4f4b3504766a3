"""The recipes that come with labkit, and how one is found by name or in a file of yours. Lessons 00 and 15."""

from __future__ import annotations

import difflib
from types import ModuleType

from labkit.errors import RecipeError
from labkit.recipe import Recipe

SHIPPED = ("digits", "names")
OBJECT = "object:"
"""How a config refers to a recipe that was handed over as an object: only its owner can give it again."""


def find(name_or_path: str) -> Recipe:
    """A new recipe object: "digits", "names", or "path/to/file.py:attribute" (a Recipe class, or an instance of one).

    Raises RecipeError for an unknown name (the nearest is said), a missing file or attribute, or something else there.
    """
    path, colon, attribute = name_or_path.rpartition(":")
    if colon and path.endswith(".py"):
        from labkit.recipes.from_file import load

        return _recipe(load(path), attribute, path)
    if name_or_path == "digits":
        from labkit.recipes.digits import Digits

        return Digits()
    if name_or_path == "names":
        from labkit.recipes.names import Names

        return Names()
    raise _unknown(name_or_path)


def named(recipe: str | Recipe, reference: str | None = None) -> tuple[Recipe, str]:
    """The recipe, found if it is named, and what a config calls it: its name, the reference, or "object:CLASS"."""
    if isinstance(recipe, str):
        return find(recipe), recipe
    return recipe, reference or f"{OBJECT}{type(recipe).__qualname__}"


def again(reference: str, given: Recipe | None = None) -> Recipe:
    """The recipe of a stored config: the one given, else the one that its reference finds.

    Raises RecipeError where find() does, and for an object that was not given.
    """
    if given is None and reference.startswith(OBJECT):
        raise RecipeError(
            f"the run was started with an object ({reference.removeprefix(OBJECT)})", "that recipe", "pass recipe=..."
        )
    return given or find(reference)


def _unknown(name: str) -> RecipeError:
    if name.endswith(".py"):
        return RecipeError(f"{name!r} names a file", "file and attribute", f"for example {name}:MyRecipe")
    near = difflib.get_close_matches(name, SHIPPED, n=1, cutoff=0.4)
    expected = " or ".join(SHIPPED) + ", or path/to/file.py:attribute"
    return RecipeError(f"there is no recipe {name!r}", expected, f"did you mean {near[0]!r}?" if near else "")


def _recipe(module: ModuleType, attribute: str, path: str) -> Recipe:
    found = getattr(module, attribute, None)
    if isinstance(found, Recipe):
        return found
    if isinstance(found, type) and issubclass(found, Recipe):
        missing = sorted(getattr(found, "__abstractmethods__", ()))
        if missing:
            raise RecipeError(f"{attribute} in {path} has no {missing[0]}()", "the four methods of Recipe", "write it")
        return found()
    here = sorted(
        name
        for name, thing in vars(module).items()
        if isinstance(thing, Recipe)
        or (isinstance(thing, type) and issubclass(thing, Recipe) and thing.__module__ == module.__name__)
    )
    what = f"{attribute!r} in {path} is not a recipe" if hasattr(module, attribute) else f"{path} has no {attribute!r}"
    raise RecipeError(what, "one of " + ", ".join(here) if here else "a subclass of labkit.recipe.Recipe there", "")
