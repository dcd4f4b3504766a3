"""Make the data files of this folder from two installed packages (scikit-learn and names); see README.md.

    python make_data.py            writes the six files beside this script
    python make_data.py --check    writes nothing, says whether the files here are what would be written

Needs scikit-learn (any release that ships digits.csv.gz) and names 0.3.0. Running labkit needs neither.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
DIGITS = {"train": 1257, "validation": 270, "test": 270}
NAMES = {"train": 4131, "validation": 516, "test": 516}


def main() -> int:
    parser = argparse.ArgumentParser(description="make the data files of this folder from the installed packages")
    parser.add_argument("--check", action="store_true", help="only compare with the files that are here")
    check = parser.parse_args().check
    made = {**digit_files(), **name_files()}
    differing = 0
    for name, content in made.items():
        path = HERE / name
        if check:
            same = path.is_file() and path.read_bytes() == content
            differing += not same
            print("same     " if same else "DIFFERENT", name)
        else:
            path.write_bytes(content)
            print(hashlib.sha256(content).hexdigest(), name)
    return 1 if differing else 0


def digit_files() -> dict[str, bytes]:
    """Three CSV files: label, then 64 grey values 0..16 row by row; lines in the order of the source."""
    packed = (package("sklearn") / "datasets" / "data" / "digits.csv.gz").read_bytes()
    lines = []
    for row in gzip.decompress(packed).decode("ascii").split():
        *pixels, label = [int(float(value)) for value in row.split(",")]
        lines.append(",".join(map(str, [label, *pixels])))
    # The line number is part of the key: identical images would otherwise be ranked by nothing.
    parts = split([f"digit {number}" for number in range(len(lines))], DIGITS)
    return {f"digits-{part}.csv": _text([lines[number] for number in members]) for part, members in parts.items()}


def name_files() -> dict[str, bytes]:
    """Three text files: one lower-case name a line, distinct, sorted."""
    distinct: set[str] = set()
    for source in ("dist.female.first", "dist.male.first"):
        text = (package("names") / source).read_text(encoding="ascii")
        distinct.update(line.split()[0].lower() for line in text.splitlines() if line.strip())
    names = sorted(distinct)
    parts = split([f"name {name}" for name in names], NAMES)
    return {f"names-{part}.txt": _text([names[number] for number in members]) for part, members in parts.items()}


def package(name: str) -> Path:
    """The folder of an installed package, found without running it."""
    found = find_spec(name)
    if found is None or found.origin is None:
        raise SystemExit(f"the package {name} is not installed: python -m pip install scikit-learn names==0.3.0")
    return Path(found.origin).parent


def split(keys: list[str], sizes: dict[str, int]) -> dict[str, list[int]]:
    """Rank the keys by the SHA-256 of their UTF-8 text; the first ranks are train, then validation, then test.

    A hash and not a generator, so the rule gives the same parts with every library and release.
    Returns the positions of each part in ascending order.
    """
    if sum(sizes.values()) != len(keys):
        raise SystemExit(f"the source holds {len(keys)} examples, the split was made for {sum(sizes.values())}")
    ranked = sorted(range(len(keys)), key=lambda position: hashlib.sha256(keys[position].encode()).hexdigest())
    parts, start = {}, 0
    for part, size in sizes.items():
        parts[part] = sorted(ranked[start : start + size])
        start += size
    return parts


def _text(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode("ascii")


if __name__ == "__main__":
    sys.exit(main())
