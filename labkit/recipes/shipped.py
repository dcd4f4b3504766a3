"""The data files that come with labkit: where they are, and proof that they are unchanged. Lesson 00."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from labkit.errors import DataError

DIGESTS = {
    "digits-train.csv": "d2d649bec9e72e07041c4452b64fbc378eb85ec90e1b5fc742a0a99fc6decdc1",
    "digits-validation.csv": "b2b46ee8e4ba6f66baf93f0c3aa56ec81b8a9886e56aa7c39db7c023255c590a",
    "digits-test.csv": "47e9d2c529691c0d6cfea59be5904b5341fc08f3c61d8a96cac563f3e93571b1",
    "names-train.txt": "8ef1f85c2a83727bac5c499089ebf76cef6bf402ff74f57a9209a959daf43485",
    "names-validation.txt": "fe17bddc2f277cb21f9e3d83cd697cf93029a75f27b91e8fbdbbfbc8c6b747d1",
    "names-test.txt": "6b7802b8f4bc4051a25b50fe3d3ca4bebf9375e41ffdd4b6faa5a7b482fe8885",
}


def folder() -> Path:
    """The folder of the shipped data: labkit/_data in an installed package, data/ beside labkit/ in a checkout.

    Raises DataError when neither is there.
    """
    package = Path(__file__).resolve().parents[1]
    places = [package / "_data", package.parent / "data"]
    for place in places:
        if (place / "digits-train.csv").is_file():
            return place
    raise DataError(
        "the shipped data is not there: looked in " + " and ".join(str(place) for place in places),
        "a folder that holds " + ", ".join(sorted(DIGESTS)),
        "install labkit again, or in a checkout: git checkout -- data",
    )


def read(name: str) -> str:
    """The text of one shipped file, after its digest was verified; DataError shows both digests when they differ."""
    path = folder() / name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}", "a readable file", _REMEDY) from error
    seen = hashlib.sha256(content).hexdigest()
    if seen != DIGESTS[name]:
        raise DataError(f"{path} has SHA-256 {seen}", f"SHA-256 {DIGESTS[name]}", _REMEDY)
    return content.decode("ascii")


def fingerprint(files: Mapping[str, str]) -> dict[str, str]:
    """The SHA-256 of each part's file, {part: digest}, after it was read and verified."""
    for name in files.values():
        read(name)
    return {part: DIGESTS[name] for part, name in files.items()}


def damaged() -> list[str]:
    """One sentence for each shipped file that is missing or changed; empty when all is well."""
    complaints = []
    for name in DIGESTS:
        try:
            read(name)
        except DataError as error:
            complaints.append(str(error))
    return complaints


_REMEDY = "restore the file (in a checkout: git checkout -- data) or install labkit again"
