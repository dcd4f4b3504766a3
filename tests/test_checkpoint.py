"""Checkpoints as a run uses them: published, found, kept, refused. Numbers are those of the public fault reports."""

from __future__ import annotations

import enum
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import types
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labkit.checkpoint import BackgroundSaver, CheckpointStore, payload_bytes, plain, verify
from labkit.checkpoint import store as store_page
from labkit.errors import CheckpointError, ConfigError, StorageError
from labkit.files import Files


def payload(value: float = 0.0) -> dict[str, Any]:
    return {"model": {"weight": torch.full((4, 3), value)}, "counters": {"committed": 1}}


def publish_all(store: CheckpointStore, updates: Any, run_id: str = "mine") -> None:
    for update in updates:
        store.publish(update, payload(update), {"run_id": run_id})


def names(store: CheckpointStore) -> list[str]:
    return sorted(os.listdir(store.folder))


def damage(path: Path, change: Any) -> None:
    data = bytearray((path / "state.pt").read_bytes())
    change(data)
    (path / "state.pt").write_bytes(data)


def flip(data: bytearray) -> None:
    data[len(data) // 2] ^= 1


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


# --- publication and reading -----------------------------------------------------------------------------------------


def test_what_was_published_comes_back_bit_for_bit(store: CheckpointStore) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 3)).sum().backward()
    optimizer.step()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "odd": [1, (2.5, None), b"x", "ß", True]}
    published = store.publish(47, saved, {"loss": 0.25})
    assert published.path.name == "update-000000047"
    found = store.newest()
    assert found.update == 47 and found.rejected == [] and found.manifest["facts"] == {"loss": 0.25}
    assert found.payload["odd"] == saved["odd"]
    assert found.payload["optimizer"]["param_groups"] == optimizer.state_dict()["param_groups"]
    for name, tensor in model.state_dict().items():
        assert torch.equal(found.payload["model"][name], tensor)
    assert found.payload["model"]._metadata == model.state_dict()._metadata  # type: ignore[attr-defined]
    for number, state in optimizer.state_dict()["state"].items():
        assert all(torch.equal(state[name], found.payload["optimizer"]["state"][number][name]) for name in state)


def test_a_loaded_payload_does_not_depend_on_the_file_any_more(store: CheckpointStore) -> None:
    store.publish(1, payload(3.0), {})
    found = store.newest()
    damage(found.path, lambda data: data.__setitem__(slice(None), bytes(len(data))))
    assert torch.equal(found.payload["model"]["weight"], torch.full((4, 3), 3.0))
    found.payload["model"]["weight"].zero_()


def test_nothing_there_is_an_error_and_not_a_fresh_start(store: CheckpointStore) -> None:
    for call in (store.newest, lambda: store.load(3)):
        with pytest.raises(CheckpointError, match="no usable checkpoint"):
            call()
    assert store.list() == [] and store.sweep() == [] and store.retain() == []


def test_K08_15_a_damaged_newest_is_named_and_the_next_older_is_used(store: CheckpointStore) -> None:
    publish_all(store, range(1, 6))
    (store.folder / "update-000000005" / "state.pt").unlink()
    damage(store.folder / "update-000000004", flip)
    damage(store.folder / "update-000000003", lambda data: data.pop())
    (store.folder / "update-000000900").mkdir()
    found = store.newest()
    assert found.update == 2 and torch.equal(found.payload["model"]["weight"], torch.full((4, 3), 2.0))
    reasons = {rejected.path.name: rejected.reason for rejected in found.rejected}
    assert list(reasons) == [f"update-{number:09d}" for number in (900, 5, 4, 3)]
    assert "manifest.json is missing" in reasons["update-000000900"]
    assert "state.pt is missing" in reasons["update-000000005"]
    assert "digest" in reasons["update-000000004"]
    assert "bytes, its manifest says" in reasons["update-000000003"]
    publish_all(store, [3])  # below the rejects, and onto one of them
    assert store.newest().update == 3


def test_K08_08_when_all_are_damaged_the_error_names_folder_and_reasons(store: CheckpointStore) -> None:
    publish_all(store, [1, 2])
    for entry in store.list():
        damage(entry.path, flip)
    with pytest.raises(CheckpointError) as caught:
        store.newest()
    assert str(store.folder) in str(caught.value) and str(caught.value).count("digest") == 2


def test_the_reader_passes_over_what_the_caller_cannot_use(store: CheckpointStore) -> None:
    publish_all(store, [1, 2])
    found = store.newest(usable=lambda manifest: "too new" if manifest["update"] == 2 else None)
    assert found.update == 1 and found.rejected[0].reason == "too new"


def test_K08_05_numbers_are_compared_as_numbers(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=10)
    publish_all(store, range(9000, 10001, 100))
    (store.folder / "handpicked").mkdir()
    assert store.retain() == [9000]
    assert [entry.update for entry in store.list()] == list(range(10000, 9000, -100))
    assert "handpicked" in names(store)
    publish_all(store, [100_000, 900_000])
    os.rename(store.folder / "update-000900000", store.folder / "update-0900000")
    os.rename(store.folder / "update-000100000", store.folder / "update-100000")
    assert store.newest().update == 900_000


def test_K08_02_parts_of_two_checkpoints_are_never_mixed(store: CheckpointStore) -> None:
    publish_all(store, [1, 2])
    old, new = (store.folder / f"update-00000000{number}" for number in (1, 2))
    shutil.copy(old / "state.pt", new / "state.pt")
    found = store.newest()
    assert found.update == 1 and "state.pt" in found.rejected[0].reason
    shutil.copy(old / "manifest.json", new / "manifest.json")  # now whole, but under another's name
    found = store.newest()
    assert found.update == 1 and "holds update 1 under another number" in found.rejected[0].reason


def test_nothing_outside_the_folder_is_ever_read(store: CheckpointStore, tmp_path: Path) -> None:
    publish_all(store, [1, 2])
    path = store.folder / "update-000000002"
    os.rename(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert "symbolic link" in store.newest().rejected[0].reason
    path.unlink()
    os.rename(tmp_path / "elsewhere", path)
    for name in ("state.pt", "manifest.json"):
        os.rename(path / name, tmp_path / name)
        (path / name).symlink_to(tmp_path / name)
        assert "not a plain file" in store.newest().rejected[0].reason
        (path / name).unlink()
        os.rename(tmp_path / name, path / name)
    os.unlink(path / "state.pt")
    os.mkfifo(path / "state.pt")  # opening it would wait for ever
    assert "not a plain file" in store.newest().rejected[0].reason


@pytest.mark.parametrize("folder", ["with space", "Größe é", "数据", "run 🚀", "a'b\"c", "x" * 200])
def test_K08_10_folder_names_of_any_script_work(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    store = CheckpointStore(tmp_path / folder / "checkpoints")
    publish_all(store, [1, 2, 3])
    assert store.retain() == [1]
    for change in (lambda data: data.pop(), lambda data: data.__delitem__(slice(len(data) // 2, None)), flip):
        store.publish(3, payload(3), {"run_id": "mine"})
        damage(store.folder / "update-000000003", change)
        assert store.newest().update == 2


def test_K08_09_relative_paths_moved_folders_and_links_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "A" / "run").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "A")
    store = CheckpointStore("run/checkpoints")
    monkeypatch.chdir(tmp_path)
    publish_all(store, [1])
    assert (tmp_path / "A" / "run" / "checkpoints" / "update-000000001").is_dir()
    shutil.move(tmp_path / "A" / "run", tmp_path / "B")
    assert str(tmp_path) not in (tmp_path / "B" / "checkpoints" / "update-000000001" / "manifest.json").read_text()
    assert CheckpointStore("B/checkpoints").newest().update == 1
    (tmp_path / "link").symlink_to(tmp_path / "B")
    linked = CheckpointStore(tmp_path / "link" / "checkpoints")
    publish_all(linked, [2])
    assert CheckpointStore(tmp_path / "B" / "checkpoints").newest().update == 2


def test_a_vanished_run_folder_is_a_clear_error_and_the_run_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    store = CheckpointStore(run / "checkpoints")
    publish_all(store, [1])
    shutil.rmtree(run)
    with pytest.raises(StorageError, match="No such file"):
        publish_all(store, [2])
    run.mkdir()
    publish_all(store, [3])
    assert store.newest().update == 3


def test_K08_12_a_path_below_a_plain_file_fails_at_the_first_publication(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Not a directory"):
        publish_all(CheckpointStore(tmp_path / "file" / "checkpoints"), [0])


def test_K08_14_an_existing_one_is_replaced_without_a_moment_in_which_there_is_none(store: CheckpointStore) -> None:
    class Watched(Files):
        def __init__(self) -> None:
            self.newest: list[int] = []

        def rename(self, source: Path, target: Path) -> None:
            assert not target.exists()  # as Windows demands
            super().rename(source, target)
            self.newest.append(store.newest().update)

    publish_all(store, [1, 2])
    files = Watched()
    CheckpointStore(store.folder, files=files).publish(2, payload(7.0), {"run_id": "mine"})
    assert files.newest == [2, 2, 2]
    assert names(store) == ["update-000000001", "update-000000002"]
    assert torch.equal(store.load(2).payload["model"]["weight"], torch.full((4, 3), 7.0))


def test_K08_13_a_checkpoint_of_another_run_is_set_aside_and_never_overwritten(tmp_path: Path) -> None:
    theirs = CheckpointStore(tmp_path / "checkpoints", run_id="theirs")
    publish_all(theirs, [5], run_id="theirs")
    before = (theirs.folder / "update-000000005" / "state.pt").read_bytes()
    mine = CheckpointStore(tmp_path / "checkpoints", run_id="mine")
    publish_all(mine, [4])
    assert mine.newest().update == 4 and "run 'theirs'" in mine.newest().rejected[0].reason
    publish_all(mine, [5])
    aside = next(path for path in mine.folder.iterdir() if path.name.startswith("aside-"))
    assert (aside / "state.pt").read_bytes() == before and verify(aside) is None
    assert mine.newest().update == 5


def test_equal_payloads_give_equal_bytes_whatever_objects_they_are_made_of(store: CheckpointStore) -> None:
    first = {"model": {"a": torch.ones(3)}, "where": "cpu", "name": "x y", "again": "x y", "pair": ("x y", 10**30)}
    second = json.loads(json.dumps({name: value for name, value in first.items() if name not in ("model", "pair")}))
    second = {"model": {"a": torch.ones(5)[1:4]}, **second, "pair": ("".join(["x", " y"]), 10**30)}
    records = [store.publish(number, each, {}).manifest["files"] for number, each in enumerate((first, second))]
    records.append(store.publish(2, store.load(1).payload, {}).manifest["files"])
    assert records[0] == records[1] == records[2]


# --- retention -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 0, -3])
def test_K08_06_keeping_fewer_than_two_is_refused_with_the_reason(keep: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the only one"):
        CheckpointStore(tmp_path, keep=keep)


def test_K08_04_after_each_save_the_last_ones_remain(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=3)
    counts = []
    for update in range(1, 7):
        publish_all(store, [update])
        store.retain()
        counts.append(len(names(store)))
    assert counts == [1, 2, 3, 3, 3, 3]


def test_K08_04_a_stale_higher_number_of_another_run_holds_no_slot(tmp_path: Path) -> None:
    publish_all(CheckpointStore(tmp_path / "checkpoints"), [5000], run_id="old")
    store = CheckpointStore(tmp_path / "checkpoints")
    for update in (200, 300, 400):
        publish_all(store, [update])  # the store takes its run from what it publishes
        store.retain()
    assert names(store) == ["update-000000300", "update-000000400", "update-000005000"]
    assert store.newest().update == 400


def test_K08_06_best_and_milestones_stay(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2, milestone_every=4)
    for update in range(1, 11):
        publish_all(store, [update])
        store.retain(best=3 if update >= 3 else None)
    assert [entry.update for entry in store.list()] == [10, 9, 8, 4, 3]
    assert all(verify(entry.path) is None for entry in store.list())


def test_damaged_ones_neither_count_nor_go(store: CheckpointStore) -> None:
    publish_all(store, [1, 2, 3, 4])
    for update in (3, 4):
        damage(store.folder / f"update-00000000{update}", flip)
    assert CheckpointStore(store.folder).retain() == []
    publish_all(store, [5])
    assert store.retain() == [1]
    assert [entry.update for entry in store.list()] == [5, 4, 3, 2]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_K06_06_nonfinite_weights_never_rotate_out_a_healthy_checkpoint(bad: float, store: CheckpointStore) -> None:
    publish_all(store, [1, 2])
    for update in range(3, 9):
        broken = payload(1.0)
        broken["model"]["weight"][1, 1] = bad
        assert store.publish(update, broken, {"run_id": "mine"}).manifest["healthy"] is False
        store.retain()
    assert [entry.update for entry in store.list()] == [8, 2, 1]
    large = {"model": torch.full((10,), 3e38), "elsewhere": torch.tensor(float("nan"))}
    assert store.publish(9, large, {"run_id": "mine"}).manifest["healthy"] is True  # the sum overflows, no entry does


def test_a_run_that_goes_on_from_an_older_one_sets_its_other_future_aside(store: CheckpointStore) -> None:
    publish_all(store, [1, 2, 3, 4])
    assert len(store.set_aside_after(2)) == 2
    assert store.newest().update == 2
    publish_all(store, [3])
    assert store.newest().update == 3 and sum(name.startswith("aside-") for name in names(store)) == 2


def test_debris_is_swept_at_the_start_and_is_never_a_checkpoint(store: CheckpointStore) -> None:
    publish_all(store, [1])
    whole = store.folder / "update-000000001"
    for name in (".tmp-update-000000009-0123abcd", ".gone-update-000000008.1-0123abcd"):
        shutil.copytree(whole, store.folder / name)
    shutil.copytree(whole, store.folder / ".tmp-notes")  # not ours
    assert store.newest().update == 1 and len(store.list()) == 1
    assert [path.name[:5] for path in store.sweep()] == [".gone", ".tmp-"]
    assert names(store) == [".tmp-notes", "update-000000001"]


# --- what may be saved -----------------------------------------------------------------------------------------------


class _Color(enum.Enum):
    RED = 1


_Pair = namedtuple("_Pair", "a b")


def test_K09_01_numbers_of_every_origin_become_plain_numbers(store: CheckpointStore) -> None:
    values = {
        "float64": np.float64(0.5),
        "float32": np.float32(0.5),
        "int": np.int64(3),
        "bool": np.bool_(True),
        "text": np.str_("a"),
        "array": np.array(0.5),
        "tensor": torch.tensor(0.5),
        "float": 0.5,
    }
    store.publish(1, {"metrics": values}, {"metrics": values, "worst": float("-inf"), "none": float("nan")})
    found = store.newest()
    assert {name: type(value).__name__ for name, value in found.payload["metrics"].items()} == {
        **dict.fromkeys(("float64", "float32", "array", "float"), "float"),
        **{"int": "int", "bool": "bool", "text": "str", "tensor": "Tensor"},
    }
    facts = found.manifest["facts"]
    assert facts["metrics"] == {**dict.fromkeys(values, 0.5), "int": 3, "bool": True, "text": "a"}
    assert (facts["worst"], facts["none"]) == ("-inf", "nan")


REFUSED = {
    "path": Path("a"),
    "array": np.zeros(3),
    "object": types.SimpleNamespace(a=1),
    "named tuple": _Pair(1, 2),
    "deque": deque([1]),
    "set": {1, 2},
    "slice": slice(3),
    "enum": _Color.RED,
    "function": len,
    "numpy time": np.datetime64("2020-01-01"),
    "generator": torch.Generator(),
    "sparse": torch.eye(2).to_sparse(),
    "meta": torch.empty(2, device="meta"),
    "complex": 1j,
    "old numpy state": np.random.RandomState(0).get_state(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_K09_02_what_restricted_loading_would_refuse_is_refused_before_writing(
    name: str, store: CheckpointStore
) -> None:
    with pytest.raises(CheckpointError, match=r"payload\['settings'\]\[1\]") as caught:
        store.publish(1, {"settings": [0, REFUSED[name]]}, {})
    assert caught.value.do
    assert not store.folder.exists()


@pytest.mark.parametrize("facts", [{"a": Path("x")}, {"a": {1: 2}}, {"a": [torch.zeros(2)]}, {"a": {1, 2}}])
def test_facts_that_are_not_JSON_are_refused_before_writing(facts: Any, store: CheckpointStore) -> None:
    with pytest.raises(CheckpointError, match=r"facts\['a'\]"):
        store.publish(1, payload(), facts)
    assert not store.folder.exists()


def test_a_payload_that_contains_itself_or_is_bottomless_is_refused(store: CheckpointStore) -> None:
    loop: dict[str, Any] = {}
    loop["self"] = [loop]
    with pytest.raises(CheckpointError, match="contains itself"):
        store.publish(1, loop, {})
    deep: Any = 0
    for _ in range(5000):
        deep = [deep]
    for call in (lambda: store.publish(1, {"deep": deep}, {}), lambda: store.publish(1, {}, {"deep": deep})):
        with pytest.raises(CheckpointError, match="levels deep"):
            call()


@pytest.mark.parametrize("update", [-1, True, 1.0, "3", 10**18, None])
def test_an_update_that_is_no_counter_is_refused(update: Any, store: CheckpointStore) -> None:
    with pytest.raises(CheckpointError, match="as an update"):
        store.publish(update, payload(), {})


def test_accepted_containers_keep_their_kind(store: CheckpointStore) -> None:
    kept = {"ordered": OrderedDict(b=1, a=2), "counter": Counter({3: 2}), "dtype": torch.bfloat16, "device": "cpu"}
    changed = {"default": defaultdict(list, a=[1]), "proxy": types.MappingProxyType({"a": 1}), "size": torch.Size([2])}
    store.publish(1, {**kept, **changed, "where": torch.device("cpu")}, {})
    found = store.newest().payload
    assert {name: found[name] for name in kept} == kept and type(found["ordered"]) is OrderedDict
    assert type(found["counter"]) is Counter and found["where"] == torch.device("cpu")
    assert (found["default"], found["proxy"], found["size"]) == ({"a": [1]}, {"a": 1}, (2,))
    assert type(found["default"]) is dict


def test_K09_02_a_file_loads_in_a_process_without_the_project(store: CheckpointStore) -> None:
    store.publish(1, {"model": torch.nn.Linear(2, 2).state_dict(), "rate": np.float64(0.5)}, {})
    code = "import sys, torch; print(torch.load(sys.argv[1], weights_only=True)['rate'])"
    command = [sys.executable, "-c", code, str(store.folder / "update-000000001" / "state.pt")]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", env={"OMP_NUM_THREADS": "1"}, timeout=120)
    assert done.stdout.strip() == "0.5", done.stderr


# --- memory ----------------------------------------------------------------------------------------------------------


def size_of(store: CheckpointStore, saved: dict[str, Any]) -> int:
    path = store.publish(1, saved, {}).path
    return (path / "state.pt").stat().st_size


def test_K09_05_a_view_does_not_bring_its_whole_storage(store: CheckpointStore) -> None:
    big = torch.randn(1_000_000)
    for view in (big[5:1005], big[::1000], big.view(1000, 1000)[:, 3], big.view(1000, 1000)[:10, :100].t()):
        assert size_of(store, {"view": view}) < 1.1 * view.numel() * 4 + 3000
        assert torch.equal(store.newest().payload["view"], view)
        assert payload_bytes({"view": view}) == view.numel() * 4


def test_K09_05_two_distant_views_of_one_storage_are_two_small_ones(store: CheckpointStore) -> None:
    big = torch.randn(1_000_000)
    assert size_of(store, {"a": big[:100], "b": big[-100:]}) < 6000


def test_K09_06_shared_memory_is_stored_once_and_shared_again(store: CheckpointStore) -> None:
    big = torch.randn(3, 100_000)
    tied = {"model": {"embedding": big[1], "output": big[1].view(100, 1000), "part": big[1][200:300]}, "row": big[1]}
    assert size_of(store, tied) < 410_000
    model = store.newest().payload["model"]
    model["embedding"][:] = 5.0
    assert bool((model["output"] == 5.0).all()) and bool((model["part"] == 5.0).all())
    assert model["part"].data_ptr() == model["embedding"].data_ptr() + 200 * 4


def test_K09_06_tied_parameters_of_a_model_are_one_after_loading(store: CheckpointStore) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(500, 40), torch.nn.Linear(40, 500, bias=False))
    model[1].weight = model[0].weight
    assert size_of(store, {"model": model.state_dict()}) < 1.1 * 500 * 40 * 4 + 3000
    state = store.newest().payload["model"]
    assert state["0.weight"].data_ptr() == state["1.weight"].data_ptr()


@pytest.mark.parametrize("copy", [False, True])
def test_memory_layouts_and_corner_cases_keep_their_values(copy: bool) -> None:
    base = torch.arange(24.0)
    tensors = {
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3.0),
        "bits": torch.randn(5).bfloat16(),
        "bool": torch.tensor([True, False]),
        "complex": torch.randn(3, dtype=torch.complex64),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "windows": torch.arange(10.0).unfold(0, 4, 2),
        "even": base[::2],
        "third": base[::3],
        "parameter": torch.nn.Parameter(torch.randn(2)),
        "bytes": base.view(torch.uint8)[8:16],  # the same memory as another type
    }
    made = plain(tensors, copy=copy)
    for name, tensor in tensors.items():
        assert torch.equal(made[name], tensor.detach()) and made[name].dtype == tensor.dtype, name
        assert type(made[name]) is torch.Tensor and not made[name].requires_grad
    assert made["channels last"].is_contiguous(memory_format=torch.channels_last)
    made["even"][0] = 99.0
    assert made["third"][0] == 99.0  # shared before, shared now
    if copy:
        assert base[0] == 0.0


def test_what_nobody_saves_between_two_views_does_not_leak(store: CheckpointStore) -> None:
    secret = torch.full((64,), 7.0)
    path = store.publish(1, {"a": secret[:63:9], "b": secret[::21]}, {}).path
    found = store.newest().payload
    assert torch.equal(found["a"], secret[:63:9]) and torch.equal(found["b"], secret[::21])
    kept = torch.load(path / "state.pt", weights_only=True)["a"].untyped_storage()
    assert torch.tensor(kept.tolist(), dtype=torch.uint8).view(torch.float32).count_nonzero() == 10


def test_K09_09_a_copy_shares_nothing_with_the_live_objects() -> None:
    live = {"model": {"w": torch.zeros(3)}, "list": [1, [2]], "views": torch.zeros(10)[2:4]}
    kept = plain(live, copy=True)
    live["model"]["w"].add_(1)
    live["views"].add_(1)
    live["list"][1].append(3)
    assert kept["model"]["w"].sum() == 0 and kept["views"].sum() == 0 and kept["list"] == [1, [2]]


def test_K09_08_loaded_tensors_die_with_the_payload(store: CheckpointStore) -> None:
    import gc
    import weakref

    store.publish(1, payload(), {})
    found = store.newest()
    watch = weakref.ref(found.payload["model"]["weight"])
    del found
    gc.collect()
    assert watch() is None


# --- space -----------------------------------------------------------------------------------------------------------


def test_space_is_looked_at_before_anything_is_written(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_all(store, [1])
    monkeypatch.setattr("labkit.checkpoint.space.free_bytes", lambda path: 1_000_000)
    with pytest.raises(StorageError, match=r"needs 5\d{6} bytes .* and 1000000 are free: 4\d{6} missing"):
        store.publish(2, {"model": torch.zeros(1_000_000)}, {})
    assert names(store) == ["update-000000001"]


def test_space_says_what_retention_will_hold(store: CheckpointStore) -> None:
    space = store.space({"model": torch.zeros(1_000_000)}, milestones=3)
    assert 4_000_000 < space.one < 5_500_000 and space.retained == space.one * 7 and space.missing == 0


def test_the_estimate_covers_what_is_written(store: CheckpointStore) -> None:
    many = {"model": {f"a rather long name of a layer {number}": torch.zeros(1) for number in range(3000)}}
    assert size_of(store, many) < store.space(many).one


_LIMITED = """
import resource, signal, sys, torch
from labkit.checkpoint import CheckpointStore, store
from labkit.errors import StorageError
folder, forget = sys.argv[1], sys.argv[2] == "forget"
kept = CheckpointStore(folder)
kept.publish(1, {"model": torch.ones(10)}, {})
if forget:
    store.check_room = lambda *a: 5_000_000
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    kept.publish(2, {"model": torch.zeros(1_000_000)}, {})
except StorageError as error:
    print(error)
print(kept.newest().update)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
kept.publish(2, {"model": torch.zeros(1_000_000)}, {})
print(kept.newest().update)
"""


def run_limited(folder: Path, how: str) -> list[str]:
    root = str(Path(__file__).resolve().parent.parent)
    command = [sys.executable, "-c", _LIMITED, str(folder), how]
    environment = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("how", ["look ahead", "forget"])
def test_K08_03_a_file_size_limit_leaves_the_old_checkpoint_and_the_run(how: str, tmp_path: Path) -> None:
    pytest.importorskip("resource", reason="file size limits are a POSIX thing")
    message, before, after = run_limited(tmp_path / "checkpoints", how)
    assert "missing" in message and "file size limit" in message and (before, after) == ("1", "2")
    assert names(CheckpointStore(tmp_path / "checkpoints")) == ["update-000000001", "update-000000002"]


def test_K08_03_a_small_disk_that_fills_up(tmp_path: Path) -> None:
    script = _LIMITED.replace("resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))", "")
    script = script.split("resource.setrlimit")[0]
    command = f'mount -t tmpfs -o size=2m none "{tmp_path}" && exec "{sys.executable}" -c "$0" "{tmp_path}/c" forget'
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rm", "true"], capture_output=True).returncode:
        pytest.skip("a small disk of our own needs a mount namespace, which this system does not allow")
    root = str(Path(__file__).resolve().parent.parent)
    done = subprocess.run(
        [unshare, "-rm", "sh", "-c", command, script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
        timeout=120,
    )
    if "mount:" in done.stderr:
        pytest.skip("mounting a small tmpfs is not allowed here")
    assert done.returncode == 0, done.stderr
    message, newest = done.stdout.splitlines()
    assert "No space left" in message and "missing" in message and newest == "1"


# --- in the background -----------------------------------------------------------------------------------------------


class Slow(Files):
    """Waits in every fsync until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def fsync(self, handle: Any) -> None:
        assert self.go.wait(30)
        super().fsync(handle)


def test_a_background_save_holds_what_was_there_when_it_was_asked_for(tmp_path: Path) -> None:
    files = Slow()
    store = CheckpointStore(tmp_path / "checkpoints", files=files)
    saver = BackgroundSaver(store)
    live = payload(1.0)
    saver.submit(1, live, {"notes": ["a"]})
    assert saver.busy and saver.check() is None
    live["model"]["weight"].zero_()
    live["counters"]["committed"] = 99
    files.go.set()
    published = saver.close()
    assert published is not None and published.update == 1 and saver.check() is None
    found = store.newest()
    assert torch.equal(found.payload["model"]["weight"], torch.full((4, 3), 1.0))
    assert found.payload["counters"] == {"committed": 1}


def test_a_background_save_has_the_bytes_of_a_foreground_save(store: CheckpointStore, tmp_path: Path) -> None:
    big = torch.randn(50, 50)
    live = {
        "model": {"w": big, "tied": big, "row": big[3], "part": torch.randn(999)[::7]},
        "x": (1, "a", np.float64(2)),
    }
    front = store.publish(1, live, {"a": 1})
    other = CheckpointStore(tmp_path / "other")
    with BackgroundSaver(other) as saver:
        saver.submit(1, live, {"a": 1})
    for name in ("state.pt", "manifest.json"):
        assert (front.path / name).read_bytes() == (other.folder / front.path.name / name).read_bytes()


def test_one_save_is_in_flight_at_a_time(tmp_path: Path) -> None:
    files = Slow()
    saver = BackgroundSaver(CheckpointStore(tmp_path / "checkpoints", files=files))
    saver.submit(1, payload(), {})
    threading.Timer(0.2, files.go.set).start()
    start = time.monotonic()
    earlier = saver.submit(2, payload(), {})
    assert time.monotonic() - start > 0.1 and earlier is not None and earlier.update == 1
    last = saver.close()
    assert last is not None and last.update == 2


def test_a_background_error_surfaces_once_at_the_next_boundary(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    saver = BackgroundSaver(CheckpointStore(tmp_path / "file" / "checkpoints"))
    saver.submit(1, payload(), {})
    while saver.busy:
        time.sleep(0.01)
    with pytest.raises(StorageError):
        saver.check()
    assert saver.check() is None and saver.close() is None
    saver.submit(2, payload(), {})
    with pytest.raises(StorageError):
        saver.submit(3, payload(), {})


def test_content_that_cannot_be_saved_is_refused_at_once_in_the_background_too(store: CheckpointStore) -> None:
    saver = BackgroundSaver(store)
    with pytest.raises(CheckpointError):
        saver.submit(1, {"a": Path("x")}, {})
    with pytest.raises(CheckpointError):
        saver.submit(1, payload(), {"a": Path("x")})
    assert not saver.busy


def test_a_process_that_ends_waits_for_its_background_save(tmp_path: Path) -> None:
    code = (
        "import sys, torch; from labkit.checkpoint import *\n"
        "BackgroundSaver(CheckpointStore(sys.argv[1])).submit(3, {'model': torch.zeros(1000000)}, {})"
    )
    root = str(Path(__file__).resolve().parent.parent)
    command = [sys.executable, "-c", code, str(tmp_path / "checkpoints")]
    environment = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert CheckpointStore(tmp_path / "checkpoints").newest().update == 3, done.stderr
    command[-1] = str(tmp_path / "missing" / "checkpoints")
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert "StorageError" in done.stderr  # nobody is left to ask for the error, so it is printed


def test_a_written_checkpoint_is_read_back_before_it_gets_its_name(store: CheckpointStore) -> None:
    class Lying(Files):
        def write(self, handle: Any, data: Any) -> None:
            data = bytearray(data)
            if Path(handle.name).name == "state.pt":
                data[len(data) // 2] ^= 1
            super().write(handle, data)

    publish_all(store, [1])
    with pytest.raises(StorageError, match="reads back wrong"):
        publish_all(CheckpointStore(store.folder, files=Lying()), [2])
    assert names(store) == ["update-000000001"]


def test_an_interrupt_in_the_middle_of_a_save_leaves_no_debris(store: CheckpointStore) -> None:
    class Interrupted(Files):
        def fsync(self, handle: Any) -> None:
            raise KeyboardInterrupt

    publish_all(store, [1])
    with pytest.raises(KeyboardInterrupt):
        publish_all(CheckpointStore(store.folder, files=Interrupted()), [2])
    assert names(store) == ["update-000000001"]


def test_the_store_looks_for_room_through_one_name(store: CheckpointStore) -> None:
    assert store_page.check_room.__module__ == "labkit.checkpoint.space"  # the limit tests above replace it
