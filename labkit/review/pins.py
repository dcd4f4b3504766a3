"""Which versions a project allows: requirement files, lock files, script headers (lesson 10).

Only what is needed to tell whether a version can be below or above a bound; packaging's full rules are not repeated.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field

REQUIREMENT = re.compile(
    r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*((?:[=<>!~]=?=?|@)\s*[^;#]*)?(?:[;#].*)?$"
)
CLAUSE = re.compile(r"(===|==|~=|>=|<=|!=|=|>|<)\s*v?(\d+(?:\.\d+)*)(\.\*)?")
SCRIPT_HEADER = re.compile(r"^# /// script\s*$(.*?)^# ///\s*$", re.MULTILINE | re.DOTALL)


def canonical(name: str) -> str:
    """A package name in the one spelling that package indexes compare."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True)
class Requirement:
    """One wanted package. spec holds the version clauses; url the address it is taken from, if any."""

    name: str
    spec: str
    line: int = 0
    url: str = ""

    @property
    def bounded(self) -> bool:
        """Whether an exact version, an upper bound or a commit is named."""
        if self.url:
            return re.search(r"@[0-9a-f]{40}\b", self.url) is not None or not self.url.startswith("git+")
        return any(op in ("==", "===", "=", "~=", "<", "<=") for op, _, _ in CLAUSE.findall(self.spec))


@dataclass
class Pins:
    """The requirements that hold for a file, by canonical name."""

    specs: dict[str, str] = field(default_factory=dict)

    def add(self, requirements: Iterable[Requirement]) -> None:
        """Join further requirements; clauses about the same package all hold."""
        for r in requirements:
            known = self.specs.get(canonical(r.name), "")
            self.specs[canonical(r.name)] = ",".join(filter(None, (known, r.spec)))

    def side(self, package: str, bound: tuple[int, ...]) -> str:
        """'below' or 'from' when every allowed version lies on that side of the bound, else 'either'."""
        for op, text, wild in CLAUSE.findall(self.specs.get(package, "")):
            version = tuple(int(part) for part in re.sub(r"(\.0+)+$", "", text).split("."))
            exact = op in ("==", "===", "=")
            if version >= bound and (exact or op in (">=", ">", "~=")):
                return "from"
            if version < bound and exact and not (wild and bound[: len(version)] == version):
                return "below"
            if (op == "<" and version <= bound) or (op == "<=" and version < bound):
                return "below"
            if op == "~=" and version < bound and version[:-1] < bound[: len(version) - 1]:
                return "below"
        return "either"


def requirement(text: str, line: int = 0) -> Requirement | None:
    """Read one requirement; None for comments, options, local folders and whatever else is not one."""
    text = text.strip().strip("\"'")
    if "git+" in text:
        name = re.match(r"([\w.-]+)\s*@", text) or re.search(r"/([\w.-]+?)(?:\.git)?(?:@|#|$)", text)
        return Requirement(name[1] if name else text, "", line, text[text.index("git+") :])
    if not text or text.startswith(("-", "#", ".", "/")):
        return None
    found = REQUIREMENT.match(text)
    if found is None:
        return None
    spec = (found[2] or "").strip()
    return (
        Requirement(found[1], "", line, spec[1:].strip()) if spec.startswith("@") else Requirement(found[1], spec, line)
    )


def from_lines(text: str) -> list[Requirement]:
    """The requirements of a requirements or constraints file."""
    read = (requirement(line, number) for number, line in enumerate(text.splitlines(), 1))
    return [r for r in read if r is not None]


def from_environment(text: str) -> list[Requirement]:
    """The list items of a conda environment file that read as packages, pip's included."""
    found: list[Requirement] = []
    wanted = False
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"^\w+:", line):
            wanted = line.startswith("dependencies:")
        item = re.match(r"^\s*-\s+(?!pip:)(.+)$", line)
        if wanted and item and (r := requirement(item[1].split("::")[-1], number)):
            found.append(r)
    return found


def from_toml(text: str) -> list[Requirement]:
    """The dependencies of a pyproject file, or the exact versions of a lock file. Raises ValueError on bad TOML."""
    data = tomllib.loads(text)
    found = [
        Requirement(p["name"], "==" + p["version"])
        for p in _tables(data.get("package"))
        if {"name", "version"} <= set(p)
    ]
    project = data.get("project") if isinstance(data.get("project"), dict) else {}
    assert isinstance(project, dict)
    listed = [*_texts(project.get("dependencies")), *_texts(data.get("dependencies"))]
    for groups in (project.get("optional-dependencies"), data.get("dependency-groups")):
        for group in groups.values() if isinstance(groups, dict) else ():
            listed += _texts(group)
    return found + [r for r in (requirement(text) for text in listed) if r is not None]


def from_script_header(source: str) -> list[Requirement]:
    """The dependencies that a script declares in its header comment; none when it is absent or damaged."""
    header = SCRIPT_HEADER.search(source)
    if header is None:
        return []
    try:
        return from_toml("\n".join(line.removeprefix("#").removeprefix(" ") for line in header[1].splitlines()))
    except ValueError:
        return []


def _tables(value: object) -> list[dict[str, str]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def _texts(value: object) -> list[str]:
    return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []
