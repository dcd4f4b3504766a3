"""Lesson 05: publications stopped after every move, and their picture. The simulated disk must be able to lose."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest
import torch

from labkit.checkpoint import CheckpointStore
from labkit.files import write_file
from labkit.lab import Explorer, choice, cuts, slider
from labkit.lab.plots.files import PublicationPlot, publication, publication_sentence

OLD, NEW = b"old " * 100, b"new " * 120


def over(disk: cuts.Disk, folder: Path) -> None:
    with disk.empty(folder / "checkpoint.pt") as handle:
        disk.write(handle, NEW)


def renamed(disk: cuts.Disk, folder: Path) -> None:
    with disk.create(folder / "new.tmp") as handle:
        disk.write(handle, NEW)
    disk.replace(folder / "new.tmp", folder / "checkpoint.pt")


def synced(disk: cuts.Disk, folder: Path) -> None:
    write_file(folder / "new.tmp", NEW, disk)
    disk.replace(folder / "new.tmp", folder / "checkpoint.pt")
    disk.fsync_folder(folder)


def removed_first(disk: cuts.Disk, folder: Path) -> None:
    disk.remove(folder / "checkpoint.pt")
    synced(disk, folder)


def read(folder: Path) -> str:
    path = folder / "checkpoint.pt"
    return {OLD: "old", NEW: "new"}.get(path.read_bytes(), "half") if path.exists() else "none"


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    folder = tmp_path / "prepared"
    folder.mkdir()
    (folder / "checkpoint.pt").write_bytes(OLD)
    return folder


@pytest.mark.parametrize(
    ("way", "lost_by"),
    [(over, set(cuts.EVENTS)), (renamed, {"power cut"}), (synced, set()), (removed_first, set(cuts.EVENTS))],
)
def test_each_way_is_lost_by_just_these_events(prepared: Path, way: cuts.Publish, lost_by: set[str]) -> None:
    tried = {event: cuts.try_every(prepared, way, read, event) for event in cuts.EVENTS}
    assert {event for event, data in tried.items() if {"half", "none"} & set(data.left)} == lost_by
    assert read(prepared) == "old", "the prepared folder is only copied"


def test_a_kill_keeps_what_the_system_has_and_a_power_cut_only_what_was_synced(prepared: Path) -> None:
    assert cuts.after(prepared, renamed, read, 3, "killed").outcome == "new"
    assert cuts.after(prepared, renamed, read, 3, "power cut").outcome == "half"
    assert cuts.after(prepared, synced, read, 4, "power cut").outcome == "old", "its name was not synced"
    assert cuts.after(prepared, synced, read, 5, "power cut").outcome == "new"


def test_moves_are_named_and_what_lies_there_is_listed(prepared: Path) -> None:
    data = cuts.try_every(prepared, synced, read, "killed")
    names = ["create new.tmp", "write new.tmp", "sync new.tmp", "rename new.tmp", "sync the folder"]
    assert list(data.moves) == names and list(data.left) == ["old", "old", "old", "new", "new"]
    assert dict(data.listings[0])["checkpoint.pt"] == len(OLD) and "new.tmp" in dict(data.listings[2])
    assert dict(data.listings[4]) == {"checkpoint.pt": len(NEW)}


def test_labkit_survives_all_three_events_after_every_move(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for update in (1, 2):
        CheckpointStore(folder).publish(update, {"model": {"weight": torch.zeros(3)}}, {})

    def by_labkit(disk: cuts.Disk, place: Path) -> None:
        own = CheckpointStore(place, keep=2, files=disk)
        own.publish(3, {"model": {"weight": torch.ones(3)}}, {})
        own.retain()

    for event in cuts.EVENTS:
        data = cuts.try_every(folder, by_labkit, cuts.labkit_reader(2, 3), event)
        assert set(data.left) == {"old", "new"} and data.left[-1] == "new", event
        assert "complete checkpoint" in publication_sentence(data)


def test_the_picture_has_a_row_for_each_move_and_the_disk_beside_it() -> None:
    data = PublicationPlot(("write", "rename"), ("old", "half"), "power cut", ([("a.pt", 3)], [("b.pt", 1200)]), at=2)
    figure = publication(data)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["1  write", "2  rename"]
    assert any("1,200  b.pt" in text.get_text() for text in figure.texts)
    assert publication_sentence(data) == (
        "A power cut after move 2 (rename) leaves a name on half a file; 1 of 2 cuts do. "
        "After move 2, rename: a name on half a file."
    )
    first = dataclasses.replace(data, at=1)
    assert publication_sentence(first).endswith("After move 1, write: the old checkpoint is used.")
    killed = dataclasses.replace(data, event="killed", left=("old", "new"), at=0)
    assert publication_sentence(killed) == "A kill after any of the 2 moves leaves a complete checkpoint."
    assert not [text for text in publication(killed).texts if "bytes" in text.get_text()]


def test_the_widget_of_lesson_05_moves_by_its_traits(prepared: Path) -> None:
    ways = {"rename": renamed, "sync": synced}
    tried = {(w, e): cuts.try_every(prepared, way, read, e) for w, way in ways.items() for e in cuts.EVENTS}

    def at(way: str, event: str, move: int) -> PublicationPlot:
        return dataclasses.replace(tried[way, event], at=min(move, len(tried[way, event].moves)))

    widget = Explorer(
        {"way": choice("Way", list(ways)), "event": choice("Then", cuts.EVENTS), "move": slider("move", range(1, 6))},
        lambda **values: publication(at(**values)), lambda **values: publication_sentence(at(**values)),
    )  # fmt: skip
    widget.controls["event"].value = "power cut"
    assert "leaves a name on half a file" in widget.sentence.value
    begun = time.process_time()
    widget.controls["way"].value = "sync"
    assert time.process_time() - begun < 0.3 and "complete checkpoint" in widget.sentence.value
    widget.controls["move"].value = 5
    assert widget.trouble.value == ""
