"""Review of an unfamiliar training script: read, never run (lesson 10).

review() parses Python files and notebooks and says what they would report, upload, fetch, run, overwrite or delete.
The rules are data (rules.py, calls.py); sources.py reads, names.py resolves, engine.py joins them, blind.py says what
stays unseen.
"""

from __future__ import annotations

from pathlib import Path

from labkit.errors import ReviewError
from labkit.review.blind import BlindSpots
from labkit.review.engine import review_source
from labkit.review.pins import Pins, Requirement, canonical
from labkit.review.report import SEVERITIES, Allowed, Finding, Report, render, to_json
from labkit.review.rules import RULES
from labkit.review.sources import ALLOW, Source, Tree, find, read, read_requirements

__all__ = ["RULES", "SEVERITIES", "Allowed", "Finding", "Report", "render", "review", "run", "to_json"]


def review(path: Path) -> Report:
    """Review a file, or every Python file and notebook below a folder. Nothing is imported or run.

    Raises ReviewError when the path is neither a file nor a folder; a file that cannot be read or parsed is listed in
    unread.
    """
    path = Path(path)
    tree = find(path)
    findings: list[Finding] = []
    allowed: list[Allowed] = []
    unread: list[Finding] = []
    wanted = _requirements(tree, unread)
    spots = BlindSpots()
    for name, file in tree.python:
        source = read(name, file)
        _pin(source, wanted)
        outcome = review_source(source)
        spots.add(source, outcome, alone=path.is_file())
        findings += outcome.findings
        allowed += outcome.allowed
        unread += [_unread(name, line, cell, reason) for cell, line, reason in source.unread]
    if path.is_dir():
        _loose(wanted, tree, findings, allowed)
    return Report(
        tuple(sorted(findings, key=_place)),
        tuple(sorted(allowed, key=lambda a: _place(a.finding))),
        tuple(sorted(unread, key=_place)),
        spots.told(tree),
        len(tree.python),
    )


def run(path: Path | str, severity: str = "low", as_json: bool = False) -> tuple[str, int]:
    """What `labkit review` prints, and its exit status: 1 when anything of this severity or above was found, else 0."""
    if severity not in SEVERITIES:
        raise ReviewError(f"severity {severity!r} is unknown", "one of " + ", ".join(SEVERITIES))
    report = review(Path(path))
    return (to_json(report) if as_json else render(report, severity)), int(bool(report.at_least(severity)))


def _place(finding: Finding) -> tuple[str, int, int, str]:
    return finding.path, finding.cell or 0, finding.line, finding.rule


def _unread(name: str, line: int, cell: int | None, reason: str) -> Finding:
    rule = RULES["unread"]
    return Finding(name, line, cell, "unread", rule.severity, reason, rule.why, rule.remedy, "high")


def _requirements(tree: Tree, unread: list[Finding]) -> dict[str, list[Requirement]]:
    wanted: dict[str, list[Requirement]] = {}
    for name, file in tree.requirements:
        try:
            wanted[name] = read_requirements(name, file)
        except (ValueError, OSError) as error:
            unread.append(_unread(name, 1, None, f"the versions it asks for cannot be read ({error})"))
    return wanted


def _pin(source: Source, wanted: dict[str, list[Requirement]]) -> None:
    """Give a source the requirements of its own folder and of every folder above it, up to the reviewed one."""
    folder = source.path.rpartition("/")[0]
    for name, requirements in wanted.items():
        above = name.rpartition("/")[0]
        if not above or folder == above or folder.startswith(above + "/"):
            source.pins.add(requirements)


def _loose(wanted: dict[str, list[Requirement]], tree: Tree, findings: list[Finding], allowed: list[Allowed]) -> None:
    """Requirement lines without an upper bound, unless a lock or constraints file in the same folder gives one."""
    files = dict(tree.requirements)
    for name, requirements in wanted.items():
        folder, _, plain = name.rpartition("/")
        if not plain.startswith(("requirements", "environment")):
            continue
        beside = Pins()
        for other, more in wanted.items():
            if other.rpartition("/")[0] == folder and other != name:
                beside.add(r for r in more if r.bounded)
        lines = files[name].read_text(encoding="utf-8", errors="replace").splitlines()
        for r in requirements:
            if r.bounded or any(Requirement(n, s).bounded for n, s in beside.specs.items() if n == canonical(r.name)):
                continue
            rule = RULES["unpinned-requirement"]
            what = f"{r.name} {r.spec or r.url or 'without a version'} has no upper bound".replace("  ", " ")
            finding = Finding(
                name, r.line, None, "unpinned-requirement", rule.severity, what, rule.why, rule.remedy, "high"
            )
            comment = ALLOW.search(lines[r.line - 1])
            reason = comment[2].strip(" \t:,.-") if comment and comment[1] == "unpinned-requirement" else ""
            if reason:
                allowed.append(Allowed(finding, reason))
            else:
                findings.append(finding)
