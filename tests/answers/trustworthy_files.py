"""Answers to the exercises of lesson 05."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

order = [
    "make folder",
    "write state",
    "write manifest",
    "sync files",
    "verify",
    "rename",
    "sync parent",
    "remove oldest",
]


def moved(move, before):
    rest = [m for m in order if m != move]
    at = rest.index(before)
    return [*rest[:at], move, *rest[at:]]


def verified(path):
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        data = (path / "state.bin").read_bytes()
    except (OSError, ValueError):
        return None
    return manifest["update"] if hashlib.sha256(data).hexdigest() == manifest["sha256"] else None


def newest(folder):
    good = [(verified(path), path) for path in folder.iterdir() if path.is_dir()]
    good = [(update, path) for update, path in good if update is not None]
    return max(good)[1] if good else None


def by_time(folder):
    good = [path for path in folder.iterdir() if path.is_dir() and verified(path) is not None]
    return max(good, key=lambda p: p.stat().st_mtime) if good else None


def number(path):
    try:
        return json.loads((path / "manifest.json").read_text())["update"]
    except (OSError, ValueError):
        return -1


def loads(folder):
    good = [path for path in folder.iterdir() if number(path) >= 0 and os.path.getsize(path / "state.bin") == 300]
    return max(good, key=number) if good else None


def any_size(folder):
    return max((path for path in folder.iterdir() if number(path) >= 0), key=number)


def named_numbers(folder):
    return max(
        (p for p in folder.iterdir() if p.name[7:].split(".")[0].isdigit()), key=lambda p: int(p.name[7:].split(".")[0])
    )


def gives_up(folder):
    good = sorted((p for p in folder.iterdir() if number(p) >= 0), key=number)
    tried = [p for p in good[-3:] if verified(p) is not None]
    return tried[-1] if tried else None


def never_none(folder):
    best = newest(folder)
    return best if best is not None else max((p for p in folder.iterdir() if number(p) >= 0), key=number)


def tidies(folder):
    best = newest(folder)
    for path in folder.iterdir():
        if path.name.endswith(".tmp"):
            shutil.rmtree(path)
    return best


RIGHT = {"publish": order, "newest": newest}
WRONG = {
    "publish": {
        "a name on half a file": moved("rename", "sync files"),
        "named before it was verified": moved("rename", "verify"),
        "removes the old one too early": moved("remove oldest", "make folder"),
        "the name is not on the disk": [*order[:5], "sync parent", "rename", "remove oldest"],
        "cannot be done yet": moved("write manifest", "write state"),
        "not the eight moves": order[:7],
    },
    "newest": {
        "sorts names as text, or by time": by_time,
        "takes a flipped bit": loads,
        "takes half a file": any_size,
        "trips over debris": named_numbers,
        "gives up after the newest": gives_up,
        "never says none": never_none,
        "removes things": tidies,
    },
}
