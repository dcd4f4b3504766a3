"""A checkpoint survives whatever stops its writer: a kill at any operation, a power loss, a refusal of the disk.

Run as a program (`python test_checkpoint_crashes.py SCENARIO FOLDER [POINT]`) this file is the process that is killed.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
import torch

from labkit.checkpoint import CheckpointStore, verify
from labkit.errors import CheckpointError, StorageError
from labkit.files import OPERATIONS, Files, write_text_durably


class Unsynced(Files):
    """The real disk without waiting for it: a process that is killed loses nothing that the system already has."""

    def fsync(self, handle: FileIO) -> None:
        pass

    def fsync_folder(self, path: Path) -> None:
        pass


# --- what is done: scenarios -----------------------------------------------------------------------------------------


def payload(update: int, edition: int = 0) -> dict[str, Any]:
    return {
        "model": {"weight": torch.full((5, 7), float(100 * update + edition))},
        "update": update,
        "edition": edition,
    }


def publish(store: CheckpointStore, update: int, edition: int = 0, run_id: str = "mine") -> None:
    store.publish(update, payload(update, edition), {"run_id": run_id})


def spoil(path: Path) -> None:
    data = bytearray((path / "state.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (path / "state.pt").write_bytes(data)


@dataclass(frozen=True)
class Scenario:
    """prepare with the real disk, then act with a watched one; what may be newest during and after the act."""

    prepare: Callable[[CheckpointStore], None]
    act: Callable[[CheckpointStore], None]
    during: tuple[tuple[int, int] | None, ...]  # (update, edition); None: no checkpoint at all
    after: tuple[tuple[int, int], ...]
    damaged_before: bool = False
    keep: int = 2


def _prepare_none(store: CheckpointStore) -> None:
    pass


def _prepare_two(store: CheckpointStore) -> None:
    publish(store, 1)
    publish(store, 2)


def _prepare_damaged(store: CheckpointStore) -> None:
    _prepare_two(store)
    spoil(store.folder / "update-000000002")


def _prepare_foreign(store: CheckpointStore) -> None:
    publish(store, 1)
    publish(CheckpointStore(store.folder, files=Unsynced()), 2, 5, run_id="theirs")


def _prepare_five(store: CheckpointStore) -> None:
    for update in range(1, 6):
        publish(store, update)


def _act_train(store: CheckpointStore) -> None:
    for update in range(1, 5):
        publish(store, update)
        store.retain(best=1)


SCENARIOS = {
    "first": Scenario(_prepare_none, lambda s: publish(s, 1), (None, (1, 0)), ((1, 0),)),
    "next": Scenario(_prepare_two, lambda s: publish(s, 3), ((2, 0), (3, 0)), ((3, 0),)),
    "again": Scenario(_prepare_two, lambda s: publish(s, 2, 9), ((2, 0), (2, 9)), ((2, 9),)),
    "over a damaged one": Scenario(_prepare_damaged, lambda s: publish(s, 2, 9), ((1, 0), (2, 9)), ((2, 9),), True),
    "over a foreign one": Scenario(_prepare_foreign, lambda s: publish(s, 2, 9), ((1, 0), (2, 9)), ((2, 9),)),
    "retention": Scenario(_prepare_five, lambda s: void(s.retain(best=1)), ((5, 0),), ((5, 0),)),
    "set aside": Scenario(_prepare_five, lambda s: void(s.set_aside_after(3)), ((5, 0), (4, 0), (3, 0)), ((3, 0),)),
    "training": Scenario(_prepare_none, _act_train, (None, *((update, 0) for update in range(1, 5))), ((4, 0),)),
}


def void(value: object) -> None:
    """Make a statement of an expression."""


def store_at(run: Path, scenario: Scenario, files: Files | None = None) -> CheckpointStore:
    return CheckpointStore(run / "checkpoints", scenario.keep, files=files or Unsynced(), run_id="mine")


# --- what must hold --------------------------------------------------------------------------------------------------


def newest_of(run: Path, scenario: Scenario) -> tuple[int, int] | None:
    """Update and edition of the newest, its content compared with what was saved; None when there is none."""
    store = store_at(run, scenario)
    try:
        found = store.newest()
    except CheckpointError:
        return None
    edition = found.payload["edition"]
    wanted = payload(found.update, edition)
    assert found.payload["update"] == found.update == found.manifest["update"]
    assert torch.equal(found.payload["model"]["weight"], wanted["model"]["weight"])
    return found.update, edition


def faults_of(run: Path, scenario: Scenario, allowed: tuple[tuple[int, int] | None, ...]) -> list[str]:
    """What is wrong with a run folder after its writer stopped: nothing, unless a guarantee is broken."""
    faults = []
    newest = newest_of(run, scenario)
    if newest not in allowed:
        faults.append(f"newest is {newest}, allowed are {allowed}")
    for entry in store_at(run, scenario).list():
        rejected = verify(entry.path)
        if rejected and not scenario.damaged_before:
            faults.append(f"{entry.path.name} has the name of a checkpoint and {rejected.reason}")
    return faults


def assert_goes_on(run: Path, scenario: Scenario) -> None:
    """After any stop: the next start sweeps the debris, publishes, and nothing but checkpoints is left."""
    store = store_at(run, scenario)
    before = newest_of(run, scenario)
    store.sweep()
    assert newest_of(run, scenario) == before, "sweeping changed what is newest"
    publish(store, 6)
    publish(store, 7)
    assert newest_of(run, scenario) == (7, 0)
    left = [name for name in os.listdir(store.folder) if not name.startswith(("update-", "aside-"))]
    assert left == []


# --- killed at every operation ---------------------------------------------------------------------------------------


class Killed(Unsynced):
    """Ends the process without any clean-up before operation number `point`, or in the middle of a write."""

    def __init__(self, point: int | None, torn: bool = False) -> None:
        self.point, self.torn, self.count = point, torn, 0
        self.seen: list[str] = []


def _killing(name: str) -> Callable[..., Any]:
    def operation(self: Killed, *arguments: Any) -> Any:
        self.count += 1
        self.seen.append(name)
        if self.count == self.point:
            if name == "write" and self.torn:
                arguments[0].write(bytes(memoryview(arguments[1]).cast("B"))[: max(1, len(arguments[1]) // 2)])
            os._exit(9)
        return getattr(Unsynced, name)(self, *arguments)

    return operation


for _name in OPERATIONS:
    setattr(Killed, _name, _killing(_name))


def _kill_everywhere(name: str, base: Path, only: int | None = None) -> dict[str, Any]:
    """Run a scenario once for each point at which to die, each time in a process and a folder of its own."""
    scenario = SCENARIOS[name]
    prepared = base / "prepared"
    prepared.mkdir(parents=True)
    scenario.prepare(store_at(prepared, scenario))
    counter = Killed(None)
    shutil.copytree(prepared, base / "whole")
    seen = _effects_seen_by_python(lambda: scenario.act(store_at(base / "whole", scenario, counter)))
    points = [(point, False) for point in range(1, counter.count + 1)]
    points += [(point + 1, True) for point, operation in enumerate(counter.seen) if operation == "write"]
    if only is not None:
        shutil.copytree(prepared, base / f"point-{only}")
        scenario.act(store_at(base / f"point-{only}", scenario, Killed(only)))
        os._exit(3)  # not reached
    died = []
    for point, torn in points:
        run = base / f"point-{point}{'-torn' if torn else ''}"
        shutil.copytree(prepared, run)
        child = os.fork()  # this process is new, single-threaded and does nothing else
        if child == 0:
            scenario.act(store_at(run, scenario, Killed(point, torn)))
            os._exit(0)
        died.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return {"operations": counter.seen, "died": died, "seen": seen}


def _effects_seen_by_python(act: Callable[[], None]) -> dict[str, int]:
    """Count, by Python's own audit events, what changes the disk: nothing may go past the file layer."""
    counts: dict[str, int] = {}
    active = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not active:
            return
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            event = "create"
        elif event not in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink"):
            return
        counts[event.removeprefix("os.")] = counts.get(event.removeprefix("os."), 0) + 1

    sys.addaudithook(hook)
    act()
    active = False
    return counts


def _child(*arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


@pytest.fixture(scope="module")
def kills(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """All scenarios, killed everywhere by one fresh process; the folder with the remains, and the reports."""
    if not hasattr(os, "fork"):
        pytest.skip("the killed processes are forked from a fresh one: POSIX only")
    base = tmp_path_factory.mktemp("kills")
    done = _child("all", str(base))
    assert done.returncode == 0, done.stderr
    return base, json.loads(done.stdout)


@pytest.mark.parametrize("name", SCENARIOS)
def test_K08_01_killed_at_every_file_operation_a_correct_checkpoint_loads(
    name: str, kills: tuple[Path, dict[str, Any]]
) -> None:
    base, report, scenario = kills[0] / name, kills[1][name], SCENARIOS[name]
    assert set(report["died"]) == {9}, "some point was never reached"
    kinds = ("mkdir", "create", "rename", "remove", "rmdir")
    through = {kind: report["operations"].count(kind) for kind in kinds if kind in report["operations"]}
    assert report["seen"] == through, "something reaches the disk without the file layer"
    assert faults_of(base / "whole", scenario, scenario.after) == []
    runs = sorted(base.glob("point-*"))
    assert len(runs) == len(report["died"]) >= len(report["operations"])
    for run in runs:
        assert faults_of(run, scenario, scenario.during) == [], run.name
        assert_goes_on(run, scenario)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["next", "again"])
def test_killed_at_every_operation_in_processes_started_anew(name: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    for point in itertools.count(1):
        base = tmp_path / str(point)
        base.mkdir()
        done = _child(name, str(base), str(point))
        if done.returncode == 3:
            assert point > 10
            return
        assert done.returncode == 9, done.stderr
        assert faults_of(base / f"point-{point}", scenario, scenario.during) == []


# --- power loss ------------------------------------------------------------------------------------------------------


class Recorded(Unsynced):
    """Does the operations and keeps a log of them: (operation, path or paths, data)."""

    def __init__(self) -> None:
        self.log: list[tuple[str, tuple[Path, ...], bytes]] = []


def _recording(name: str) -> Callable[..., Any]:
    def operation(self: Recorded, *arguments: Any) -> Any:
        data = b""
        paths = arguments
        if name in ("write", "fsync", "close"):
            paths = (Path(arguments[0].name),)
            data = bytes(arguments[1]) if name == "write" else b""
        self.log.append((name, tuple(Path(path) for path in paths), data))
        return getattr(Unsynced, name)(self, *arguments)

    return operation


for _name in OPERATIONS:
    setattr(Recorded, _name, _recording(_name))


@dataclass
class Node:
    """A file or folder of the model disk: what is on the platter, and what was only asked for."""

    folder: bool
    safe: bytes = b""  # file: content that an fsync has confirmed
    data: bytes = b""  # file: content as the process sees it
    entries: dict[str, Node] = field(default_factory=dict)  # folder: as the process sees it
    safe_entries: dict[str, Node] = field(default_factory=dict)
    pending: list[tuple[str, str, Node | None]] = field(default_factory=list)  # (new name, old name, what)

    def change(self, new: str, old: str, node: Node | None) -> None:
        self.pending.append((new, old, node))
        _apply(self.entries, new, old, node)


def _apply(entries: dict[str, Node], new: str, old: str, node: Node | None) -> None:
    if old:
        entries.pop(old, None)
    if new and node is not None:
        entries[new] = node


def load_model(path: Path) -> Node:
    """The model of a folder that lies safely on the disk."""
    if not path.is_dir():
        data = path.read_bytes()
        return Node(False, data, data)
    node = Node(True, entries={child.name: load_model(child) for child in path.iterdir()})
    node.safe_entries = dict(node.entries)
    return node


def replay(root: Node, base: Path, log: list[tuple[str, tuple[Path, ...], bytes]]) -> None:
    """Do logged operations on the model."""

    def at(path: Path) -> Node:
        node = root
        for part in path.relative_to(base).parts:
            node = node.entries[part]
        return node

    for name, paths, data in log:
        path = paths[0]
        parent = at(path.parent) if path != base else root
        if name in ("mkdir", "create"):
            parent.change(path.name, "", Node(name == "mkdir"))
        elif name == "open_append" and path.name not in parent.entries:
            parent.change(path.name, "", Node(False))
        elif name == "write":
            at(path).data += data
        elif name == "fsync":
            at(path).safe = at(path).data
        elif name == "fsync_folder":
            node = at(path)
            node.safe_entries, node.pending = dict(node.entries), []
        elif name in ("rename", "replace"):
            parent.change(paths[1].name, path.name, at(path))
        elif name in ("remove", "rmdir"):
            parent.change("", path.name, None)


def platter(node: Node, torn: Callable[[Node], bytes], choose: Iterator[bool] | None) -> dict[str, Any]:
    """What a power loss may leave: everything confirmed, some of the pending names (choose), file bytes by torn."""
    entries = dict(node.safe_entries)
    for new, old, child in node.pending:
        if choose is None or next(choose):
            _apply(entries, new, old, child)
    return {
        name: platter(child, torn, choose) if child.folder else torn(child) for name, child in sorted(entries.items())
    }


TEARS: tuple[Callable[[Node], bytes], ...] = (
    lambda node: node.safe,
    lambda node: node.data,
    lambda node: node.safe if node.safe == node.data else node.data[: len(node.data) // 2],
    lambda node: node.safe if node.safe == node.data else bytes(len(node.data)),
)


def losses(root: Node) -> list[dict[str, Any]]:
    """Every disk that a power loss may leave now: names not yet confirmed are there or not in any combination."""

    def pending(node: Node) -> int:
        children = {id(child): child for child in [*node.entries.values(), *node.safe_entries.values()]}
        return len(node.pending) + sum(pending(child) for child in children.values() if child.folder)

    count = pending(root)
    patterns: list[tuple[bool, ...]] = list(itertools.product((False, True), repeat=min(count, 5)))
    patterns = [pattern + (last,) * (count - len(pattern)) for pattern in patterns for last in (False, True)]
    patterns += [tuple(index == one for index in range(count)) for one in range(count)]
    patterns += [tuple(index != one for index in range(count)) for one in range(count)]
    unique: dict[str, dict[str, Any]] = {}
    for pattern in dict.fromkeys(patterns):
        for torn in TEARS:
            left = platter(root, torn, itertools.chain(pattern, itertools.repeat(False)))
            unique.setdefault(repr(left), left)
    return list(unique.values())


def write_platter(left: dict[str, Any], folder: Path) -> None:
    folder.mkdir()
    for name, content in left.items():
        if isinstance(content, dict):
            write_platter(content, folder / name)
        else:
            (folder / name).write_bytes(content)


def recorded(scenario: Scenario, tmp_path: Path) -> tuple[Path, Recorded]:
    """The prepared folder (as it lies safely on the disk) and the log of the act on a copy of it."""
    prepared, run, files = tmp_path / "prepared", tmp_path / "run", Recorded()
    prepared.mkdir()
    scenario.prepare(store_at(prepared, scenario))
    shutil.copytree(prepared, run)
    scenario.act(store_at(run, scenario, files))
    return prepared, files


def power_losses(
    prepared: Path, base: Path, log: list[tuple[str, tuple[Path, ...], bytes]], scenario: Scenario, scratch: Path
) -> Iterator[tuple[str, list[str]]]:
    """Each disk that a power loss at any moment may leave, with its faults. Equal disks are looked at once."""
    seen: set[str] = set()
    for length in range(len(log) + 1):
        root = load_model(prepared)
        replay(root, base, log[:length])
        allowed: tuple[tuple[int, int] | None, ...] = scenario.after if length == len(log) else scenario.during
        for left in losses(root):
            key = repr((left, allowed))
            if key in seen:
                continue
            seen.add(key)
            disk = scratch / f"disk-{len(seen)}"
            write_platter(left, disk)
            yield f"after {length} of {len(log)} operations", faults_of(disk, scenario, allowed)
            shutil.rmtree(disk)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_power_loss_at_any_moment_leaves_a_correct_checkpoint(name: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    prepared, files = recorded(scenario, tmp_path)
    for moment, faults in power_losses(prepared, tmp_path / "run", files.log, scenario, tmp_path):
        assert faults == [], moment


@pytest.mark.parametrize("name", ["first", "next", "again", "retention", "set aside"])
def test_without_any_one_fsync_a_power_loss_breaks_a_guarantee(name: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    prepared, files = recorded(scenario, tmp_path)
    syncs = [index for index, entry in enumerate(files.log) if entry[0] in ("fsync", "fsync_folder")]
    assert syncs
    needless = []
    for index in syncs:
        shorter = files.log[:index] + files.log[index + 1 :]
        losses_seen = power_losses(prepared, tmp_path / "run", shorter, scenario, tmp_path)
        broken = next((faults for _, faults in losses_seen if faults), None)
        if broken is None:
            needless.append((index, files.log[index][:2]))
        for disk in tmp_path.glob("disk-*"):
            shutil.rmtree(disk)
    assert needless == []


def test_a_text_file_survives_a_power_loss_only_with_both_fsyncs(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "note").write_text("old")
    shutil.copytree(tmp_path / "old", tmp_path / "run")
    files = Recorded()
    write_text_durably(tmp_path / "run" / "note", "new", files)

    def contents(log: list[tuple[str, tuple[Path, ...], bytes]]) -> list[set[Any]]:
        seen = []
        for length in range(len(log) + 1):
            root = load_model(tmp_path / "old")
            replay(root, tmp_path / "run", log[:length])
            seen.append({left.get("note") for left in losses(root)})
        return seen

    whole = contents(files.log)
    assert set().union(*whole) == {b"old", b"new"}
    assert whole[-1] == {b"new"}
    for index, entry in enumerate(files.log):
        if entry[0] in ("fsync", "fsync_folder"):
            without = contents(files.log[:index] + files.log[index + 1 :])
            assert set().union(*without) > {b"old", b"new"} or without[-1] != {b"new"}


# --- the disk refuses ------------------------------------------------------------------------------------------------


class Refusing(Unsynced):
    """Raises an OSError at operation number `point`; sticky: at every later one of the given kinds as well."""

    def __init__(self, point: int, code: int, sticky: tuple[str, ...] = ()) -> None:
        self.point, self.code, self.sticky, self.count = point, code, sticky, 0


def _refusing(name: str) -> Callable[..., Any]:
    def operation(self: Refusing, *arguments: Any) -> Any:
        self.count += 1
        if self.count == self.point or (self.count > self.point and name in self.sticky):
            if name == "close":
                arguments[0].close()
            if name == "write":
                arguments[0].write(bytes(memoryview(arguments[1]).cast("B"))[:10])
            raise OSError(self.code, os.strerror(self.code))
        return getattr(Unsynced, name)(self, *arguments)

    return operation


for _name in OPERATIONS:
    setattr(Refusing, _name, _refusing(_name))

FAULTS = {
    "no space": (errno.ENOSPC, ("mkdir", "create", "write")),
    "input/output error once": (errno.EIO, ()),
    "input/output error for good": (errno.EIO, OPERATIONS),
    "no permission": (errno.EACCES, ("mkdir", "create", "rename", "remove", "rmdir")),
    "read-only": (errno.EROFS, ("mkdir", "create", "write", "rename", "remove", "rmdir")),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "training"])
def test_K08_03_a_refusal_at_any_operation_is_named_and_loses_nothing(name: str, fault: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    code, sticky = FAULTS[fault]
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    scenario.prepare(store_at(prepared, scenario))
    for point in itertools.count(1):
        run = tmp_path / f"run-{point}"
        shutil.copytree(prepared, run)
        files = Refusing(point, code, sticky)
        store = store_at(run, scenario, files)
        try:
            scenario.act(store)
        except StorageError as error:
            assert os.strerror(code) in str(error) and error.do
        if files.count < point:
            assert point > 1
            break
        allowed = scenario.during if files.count >= point else scenario.after
        assert faults_of(run, scenario, allowed) == [], point
        files.point, files.sticky = 10**9, ()  # the disk is well again, and the same run goes on
        publish(store, 6)
        assert newest_of(run, scenario) == (6, 0)
        assert_goes_on(run, scenario)


@pytest.mark.parametrize("point", range(3, 8))
def test_a_failed_save_on_a_full_disk_removes_its_own_debris(point: int, tmp_path: Path) -> None:
    publish(CheckpointStore(tmp_path / "checkpoints"), 1)
    files = Refusing(point, errno.ENOSPC, ("mkdir", "create", "write"))
    store = CheckpointStore(tmp_path / "checkpoints", files=files)
    with pytest.raises(StorageError, match="No space left.*missing"):
        publish(store, 2)
    assert os.listdir(store.folder) == ["update-000000001"]


def _main(name: str, base: Path, *only: str) -> None:
    if name == "all":
        print(json.dumps({each: _kill_everywhere(each, base / each) for each in SCENARIOS}))
    else:
        _kill_everywhere(name, base, *map(int, only))


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
