"""Damaged, forged and hostile checkpoint files: everything is noticed, nothing runs, and only named errors come out.

Run as a program (`python test_checkpoint_damage.py FOLDER COUNT`) this file is the fuzzing process, memory bounded.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import pickle
import random
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from labkit.checkpoint import CheckpointStore, verify
from labkit.checkpoint.archive import read_manifest, write_manifest
from labkit.errors import CheckpointError
from labkit.files import PIECE


def payload(update: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(update)
    weights = {f"layer{number}": torch.randn(40, 9, generator=generator) for number in range(4)}
    return {"model": weights, "tied": weights["layer0"], "counters": {"committed": update}, "names": ["a", "b"]}


def prepared(folder: Path) -> CheckpointStore:
    store = CheckpointStore(folder / "checkpoints")
    for update in (1, 2):
        store.publish(update, payload(update), {"run_id": "mine", "loss": 0.125, "notes": ["ä", None, True]})
    return store


def sign_again(folder: Path, state: bytes) -> None:
    """What an attacker or an unlucky program does: another state under a manifest that fits it."""
    manifest = read_manifest(folder)
    pieces = [state[start : start + PIECE] for start in range(0, max(1, len(state)), PIECE)]
    digests = [hashlib.sha256(piece).hexdigest() for piece in pieces]
    manifest["files"]["state.pt"] = {"size": len(state), "piece": PIECE, "sha256": digests}
    (folder / "state.pt").write_bytes(state)
    (folder / "manifest.json").unlink()
    write_manifest(folder / "manifest.json", manifest)


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["state.pt", "manifest.json"])
def test_K08_10_every_truncation_is_detected_and_the_older_one_is_used(name: str, tmp_path: Path) -> None:
    store = prepared(tmp_path)
    path = store.folder / "update-000000002" / name
    whole = path.read_bytes()
    lengths = {len(whole) * part // 64 for part in range(64)} | {len(whole) - 1}
    for length in sorted(lengths):
        path.write_bytes(whole[:length])
        assert verify(path.parent) is not None, length
    assert store.newest().update == 1
    path.write_bytes(whole + b"\0")
    assert verify(path.parent) is not None
    path.write_bytes(whole)
    assert verify(path.parent) is None


def test_two_thousand_random_bit_flips_are_all_detected_and_none_is_loaded(tmp_path: Path) -> None:
    store = prepared(tmp_path)
    folder = store.folder / "update-000000002"
    chance = random.Random(8)
    wholes = {name: (folder / name).read_bytes() for name in ("state.pt", "manifest.json")}
    for number in range(2000):
        name = "manifest.json" if number % 4 == 0 else "state.pt"
        damaged = bytearray(wholes[name])
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        (folder / name).write_bytes(damaged)
        assert verify(folder) is not None, (name, number)
        if number % 50 == 0:
            assert store.newest().update == 1
        (folder / name).write_bytes(wholes[name])
    assert verify(folder) is None


def test_damage_in_any_piece_of_a_large_file_is_detected(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    store.publish(1, {"model": torch.zeros(PIECE // 4 * 2 + 5)}, {})
    path = store.folder / "update-000000001" / "state.pt"
    assert len(read_manifest(path.parent)["files"]["state.pt"]["sha256"]) == 3
    for place in (5000, PIECE - 1, PIECE, 2 * PIECE, path.stat().st_size - 1):
        with open(path, "r+b") as handle:
            handle.seek(place)
            old = handle.read(1)
            handle.seek(place)
            handle.write(bytes([old[0] ^ 1]))
        rejected = verify(path.parent)
        assert rejected is not None and f"piece {place // PIECE} of 3" in rejected.reason
        with open(path, "r+b") as handle:
            handle.seek(place)
            handle.write(old)
    assert verify(path.parent) is None


def test_digests_agree_with_a_plain_sha256_of_the_file(tmp_path: Path) -> None:
    folder = prepared(tmp_path).folder / "update-000000002"
    digest = hashlib.sha256((folder / "state.pt").read_bytes()).hexdigest()
    assert read_manifest(folder)["files"]["state.pt"]["sha256"] == [digest]


# --- hostile files ---------------------------------------------------------------------------------------------------


class _Runs:
    """Unpickled without limits this makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.marker),))


def _hostile(kind: str, marker: Path) -> bytes:
    buffer = io.BytesIO()
    if kind == "plain pickle":
        return pickle.dumps(_Runs(marker))
    if kind == "torch archive":
        torch.save({"model": _Runs(marker)}, buffer)
    elif kind == "old torch file":
        torch.save({"model": _Runs(marker)}, buffer, _use_new_zipfile_serialization=False)
    elif kind == "old torch tar":
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name in ("pickle", "storages", "tensors"):
                data = pickle.dumps(_Runs(marker))
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
    elif kind == "TorchScript":
        with zipfile.ZipFile(buffer, "w") as archive:
            for name in ("archive/data.pkl", "archive/constants.pkl", "archive/code/__torch__.py"):
                archive.writestr(name, pickle.dumps(_Runs(marker)))
            archive.writestr("archive/version", "3\n")
    return buffer.getvalue()


KINDS = ("plain pickle", "torch archive", "old torch file", "old torch tar", "TorchScript")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["state.pt", "manifest.json"])
def test_K09_03_a_file_that_would_run_code_runs_nothing(kind: str, name: str, tmp_path: Path) -> None:
    store = prepared(tmp_path)
    folder, marker = store.folder / "update-000000002", tmp_path / "marker"
    hostile = _hostile(kind, marker)
    if name == "state.pt":
        sign_again(folder, hostile)
    else:
        (folder / name).write_bytes(hostile)
    found = store.newest()
    assert found.update == 1 and len(found.rejected) == 1
    assert verify(folder) is not None and not marker.exists()


def test_the_hostile_file_would_have_run_without_limits(tmp_path: Path) -> None:
    """The control: the same bytes, opened the unsafe way, do run."""
    pickle.loads(_hostile("plain pickle", tmp_path / "marker"))
    assert (tmp_path / "marker").exists()


def _unpickling(call: ast.Call) -> bool:
    """A call that may run what a file says: pickle and its kin, torch.load and numpy.load without their limits."""
    name = ast.unparse(call.func)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if name == "torch.load":
        return given.get("weights_only") != "True"
    if name in ("np.load", "numpy.load"):
        return given.get("allow_pickle", "False") != "False"
    if name == "pickle.loads" and ast.unparse(call.args[0]).startswith("pickle.dumps("):
        return False  # there and back within one process
    module, _, function = name.partition(".")
    return (
        module in ("pickle", "cPickle", "dill", "joblib", "cloudpickle", "marshal", "shelve") and "dump" not in function
    )


def test_nothing_in_the_package_unpickles_without_limits() -> None:
    for page in (Path(__file__).parent.parent / "labkit").rglob("*.py"):
        for node in ast.walk(ast.parse(page.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.Call) and _unpickling(node)), f"{page}:{node.lineno}"


@pytest.mark.parametrize("content", [[1, 2], torch.zeros(3), "text", {"a": {1, 2}}, {"a": 1j}])
def test_a_state_that_is_no_plain_dictionary_is_refused(content: Any, tmp_path: Path) -> None:
    store = prepared(tmp_path)
    buffer = io.BytesIO()
    torch.save(content, buffer)
    sign_again(store.folder / "update-000000002", buffer.getvalue())
    assert store.newest().update == 1


def test_an_archive_that_would_grow_in_memory_is_refused(tmp_path: Path) -> None:
    store = prepared(tmp_path)
    folder = store.folder / "update-000000002"
    buffer = io.BytesIO()
    with zipfile.ZipFile(folder / "state.pt") as source, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    sign_again(folder, buffer.getvalue())
    rejected = verify(folder)
    assert rejected is not None and "a record that torch.save does not write" in rejected.reason


# --- fuzzing ---------------------------------------------------------------------------------------------------------


def _mutated(data: bytes, chance: random.Random) -> bytes:
    """Some bytes changed, cut, doubled, swapped or replaced; more often near the pickle and the directory."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5, 40))):
        place = chance.choice(
            (
                chance.randrange(len(made)),
                chance.randrange(min(1200, len(made))),
                -1 - chance.randrange(min(900, len(made))),
            )
        )
        kind = chance.randrange(6)
        length = chance.choice((1, 2, 4, 8, 64))
        if kind <= 2:
            made[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif kind == 3:
            made[place : place + length] = chance.randbytes(length)
        elif kind == 4:
            made[place:place] = made[place : place + length]
        else:
            del made[place : place + length]
        if not made:
            return b""
    return bytes(made)


def _odd(chance: random.Random) -> Any:
    return chance.choice(
        (None, True, -1, 0, 10**400, 1e308, float("nan"), "", "../../etc/passwd", "x" * 10000, [], {}, [[]], {"a": {}})
    )


def _mutated_manifest(manifest: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(manifest))
    for _ in range(chance.choice((1, 1, 2))):
        place: Any = made
        while isinstance(place, dict) and place:
            name = chance.choice(list(place))
            if isinstance(place[name], dict) and chance.random() < 0.6:
                place = place[name]
                continue
            action = chance.randrange(3)
            if action == 0:
                del place[name]
            elif action == 1:
                place[name] = _odd(chance)
            else:
                place[str(_odd(chance))[:50]] = place[name]
            break
    return made


def _write_json(path: Path, manifest: dict[str, Any], signed: bool) -> None:
    text = json.dumps(manifest, indent=1) + "\n"
    if signed:
        text = json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), **manifest}, indent=1) + "\n"
    path.write_text(text)


def _fuzz(base: Path, count: int) -> dict[str, Any]:
    """count damaged checkpoints, half of them with fitting digests. Anything but a named error ends the process."""
    import resource

    store = prepared(base)
    folder = store.folder / "update-000000002"
    state, manifest_bytes, manifest = (folder / "state.pt").read_bytes(), b"", read_manifest(folder)
    manifest_bytes = (folder / "manifest.json").read_bytes()
    store.newest()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, resource.RLIM_INFINITY))
    chance, slowest, refused, accepted = random.Random(9), 0.0, 0, 0
    for number in range(count):
        kind = number % 4
        if kind <= 1:
            sign_again(folder, _mutated(state, chance))
        elif kind == 2:
            _write_json(folder / "manifest.json", _mutated_manifest(manifest, chance), chance.random() < 0.8)
        else:
            (folder / "manifest.json").write_bytes(_mutated(manifest_bytes, chance))
        start = time.perf_counter()
        try:
            found = store.load(2)
            accepted += 1
            assert set(found.manifest) >= {"facts", "files"} and isinstance(found.payload, dict)
        except CheckpointError:
            refused += 1
        slowest = max(slowest, time.perf_counter() - start)
        (folder / "state.pt").write_bytes(state)
        (folder / "manifest.json").write_bytes(manifest_bytes)
    return {"slowest": slowest, "refused": refused, "accepted": accepted, "peak": resource.getrusage(0).ru_maxrss}


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory limit of the fuzzing process needs /proc")
def test_two_thousand_fuzzed_states_and_manifests_give_only_named_errors(tmp_path: Path) -> None:
    root = str(Path(__file__).resolve().parent.parent)
    command = [sys.executable, __file__, str(tmp_path), "2000"]
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["refused"] + report["accepted"] == 2000 and report["refused"] > 1200
    assert report["slowest"] < 10.0  # a thousand times the usual, for a machine that does other things as well


if __name__ == "__main__":
    print(json.dumps(_fuzz(Path(sys.argv[1]), int(sys.argv[2]))))
