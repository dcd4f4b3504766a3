"""Record files: nothing lost, nothing misread, and cheap enough for the update of a tiny model."""

from __future__ import annotations

import errno
import json
import math
import os
import time
from io import FileIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import RecordsError, StorageError
from labkit.files import Files
from labkit.records import LineLog, columns, last_record, read_lines, truncate_after
from labkit.records.values import encode, revive


def written(path: Path, *records: dict) -> Path:
    with LineLog(path) as log:
        for record in records:
            log.append(record)
    return path


def rows(path: Path) -> list[dict]:
    return read_lines(path).records


# --- writing and reading back ---


@given(st.floats(allow_nan=False))
def test_every_float_comes_back_bit_for_bit(value: float) -> None:
    back = revive(json.loads(encode({"loss_sum": value})))["loss_sum"]
    assert type(back) is float and np.float64(back).tobytes() == np.float64(value).tobytes()


def test_nonfinite_floats_are_written_as_words_and_come_back_as_floats_at_any_depth(tmp_path: Path) -> None:
    record = {"a": math.nan, "b": [math.inf, {"c": -math.inf}], "d": np.float32("nan"), "e": "fine", "f": True}
    path = written(tmp_path / "t.jsonl", record)
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["b"] == ["inf", {"c": "-inf"}]
    back = rows(path)[0]
    assert math.isnan(back["a"]) and back["b"] == [math.inf, {"c": -math.inf}] and math.isnan(back["d"])
    assert back["e"] == "fine" and back["f"] is True


def test_a_text_field_that_says_nan_stays_a_word(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", {"name": "nan", "loss": math.nan})
    back = read_lines(path, text_fields=("name",)).records[0]
    assert back["name"] == "nan" and math.isnan(back["loss"])


def test_fields_keep_their_order(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", {"z": 1, "attempt": 2, "a": 3})
    assert list(rows(path)[0]) == ["z", "attempt", "a"]


def test_a_record_is_taken_as_it_is_at_append(tmp_path: Path) -> None:
    record = {"attempt": 1, "rates": [0.1]}
    with LineLog(tmp_path / "t.jsonl") as log:
        log.append(record)
        record["rates"].append(9.0)
    assert rows(tmp_path / "t.jsonl") == [{"attempt": 1, "rates": [0.1]}]


def test_a_tensor_or_an_object_is_refused_by_name_and_the_file_stays_whole(tmp_path: Path) -> None:
    import torch

    with LineLog(tmp_path / "t.jsonl") as log:
        log.append({"attempt": 1})
        for value in (torch.zeros(2), object(), b"private"):
            with pytest.raises(RecordsError, match=r"loss.*not a plain value.*\.item\(\)"):
                log.append({"loss": value})
        log.append({"attempt": 2})
    assert [row["attempt"] for row in rows(tmp_path / "t.jsonl")] == [1, 2]


def test_appending_again_continues_the_file_k13_05(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    for attempts in (range(1, 6), range(6, 11)):
        with LineLog(path) as log:
            for attempt in attempts:
                extra = {"accuracy": 0.5} if attempt >= 7 else {}
                log.append({"attempt": attempt, "loss": attempt / 3, **extra})
    assert [row["attempt"] for row in rows(path)] == list(range(1, 11))
    table = columns(path)
    assert table["loss"].tolist() == [attempt / 3 for attempt in range(1, 11)]
    assert np.isnan(table["accuracy"][:6]).all() and (table["accuracy"][6:] == 0.5).all()


def test_lines_reach_the_file_at_flush_at_close_and_about_once_a_second(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    log = LineLog(path, every_seconds=0.05)
    log.append({"attempt": 1})
    assert rows(path) == []
    log.flush()
    assert len(rows(path)) == 1
    log.append({"attempt": 2})
    time.sleep(0.06)
    log.append({"attempt": 3})
    assert len(rows(path)) == 3
    log.append({"attempt": 4})
    log.close()
    log.close()
    assert len(rows(path)) == 4
    with pytest.raises(RecordsError, match="closed"):
        log.append({"attempt": 5})


def test_appending_costs_little_beyond_the_encoding(tmp_path: Path) -> None:
    record = {"attempt": 123456, "update": 123000, "epoch": 3, "loss_sum": 12.3456789, "rates_used": [0.001], "x": None}

    def cheapest(work) -> float:
        best = math.inf
        for _ in range(15):
            begun = time.perf_counter()
            for _ in range(300):
                work(record)
            best = min(best, (time.perf_counter() - begun) / 300)
        return best

    with LineLog(tmp_path / "t.jsonl", every_seconds=3600) as log:
        assert cheapest(log.append) - cheapest(encode) < 6e-6


# --- what a crash leaves ---


def test_a_file_cut_at_any_byte_loses_only_its_last_line_and_says_so_k13_05(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.jsonl", *({"attempt": n, "loss": n / 7} for n in range(1, 4))).read_bytes()
    for size in range(len(whole) + 1):
        path = tmp_path / f"cut-{size}.jsonl"
        path.write_bytes(whole[:size])
        lines = read_lines(path)
        complete = whole[:size].count(b"}")
        assert [row["attempt"] for row in lines] == list(range(1, complete + 1))
        tail = whole[:size].rpartition(b"\n")[2]
        assert lines.torn == (tail != b"" and not tail.endswith(b"}"))
        assert columns(path).get("attempt", np.array([])).tolist() == list(range(1, complete + 1))
        last = last_record(path)
        assert (last or {}).get("attempt", 0) == complete


def test_appending_behind_a_torn_line_keeps_it_aside_and_starts_a_clean_one(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"attempt":1}\n{"attem')
    with LineLog(path) as log:
        assert log.torn == b'{"attem'
        log.append({"attempt": 2})
    assert [row["attempt"] for row in rows(path)] == [1, 2]
    assert [kept.read_bytes() for kept in (tmp_path / "cut").iterdir()] == [b'{"attem']


def test_a_last_line_that_lacks_only_its_newline_is_kept_in_place(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"attempt":1}\n{"attempt":2}')
    with LineLog(path) as log:
        assert log.torn is None
        log.append({"attempt": 3})
    assert [row["attempt"] for row in rows(path)] == [1, 2, 3]
    assert not (tmp_path / "cut").exists()


def test_zero_bytes_left_by_a_power_cut_are_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"attempt":1}\n' + bytes(100))
    assert read_lines(path).torn and len(read_lines(path)) == 1
    written(path, {"attempt": 2})
    assert [row["attempt"] for row in rows(path)] == [1, 2]


class FullDisk(Files):
    """Takes `room` bytes, the last write in part, then refuses as a full disk does."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, handle: FileIO, data: bytes | memoryview) -> None:
        taken = min(self.room, len(data))
        handle.write(data[:taken])
        self.room -= taken
        if taken < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("room", [0, 1, 20, 45])
def test_a_full_disk_is_named_and_nothing_is_lost_once_there_is_room(tmp_path: Path, room: int) -> None:
    path, disk = tmp_path / "t.jsonl", FullDisk(room)
    log = LineLog(path, files=disk)
    for attempt in (1, 2, 3, 4):
        log.append({"attempt": attempt})
    with pytest.raises(StorageError, match="No space left"):
        log.flush()
    assert not read_lines(path).torn and rows(path) == []
    disk.room = 10_000
    log.append({"attempt": 5})
    log.close()
    assert [row["attempt"] for row in rows(path)] == [1, 2, 3, 4, 5]


def test_a_folder_that_is_gone_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="could not open"):
        LineLog(tmp_path / "gone" / "t.jsonl")


# --- files of others ---


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "[1,2]\n[3]\n", '"text"\n{}\n', "{}\n%\n{}\n"])
def test_a_foreign_file_is_refused_with_its_line_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    for read in (read_lines, columns):
        with pytest.raises(RecordsError, match=r"line \d,? is not a record"):
            read(path)
    assert path.read_text() == text


def test_an_entry_of_a_newer_format_is_refused_as_newer(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", {"format": 1, "a": 1}, {"format": 99, "a": 2})
    for read in (read_lines, columns):
        with pytest.raises(RecordsError, match="line 2, has format 99.*newer"):
            read(path)


def test_a_missing_file_holds_no_records(tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"
    assert rows(path) == [] and columns(path) == {} and last_record(path) is None and truncate_after(path, 3) == 0


# --- cutting back ---


def attempts(path: Path, *numbers: int) -> Path:
    return written(path, *({"attempt": number, "pad": "x" * 50} for number in numbers))


@pytest.mark.parametrize("boundary", [0, 1, 5, 9, 10, 11])
def test_cutting_keeps_the_attempts_up_to_the_boundary_and_the_cut_bytes_aside(tmp_path: Path, boundary: int) -> None:
    path = attempts(tmp_path / "trajectory.jsonl", *range(1, 11))
    before = path.read_bytes()
    assert truncate_after(path, boundary, tmp_path / "cut") == max(0, 10 - boundary)
    assert [row["attempt"] for row in rows(path)] == list(range(1, min(boundary, 10) + 1))
    kept = b"".join(file.read_bytes() for file in (tmp_path / "cut").glob("*"))
    assert path.read_bytes() + kept == before


def test_a_second_cut_does_not_overwrite_the_first(tmp_path: Path) -> None:
    path = attempts(tmp_path / "t.jsonl", 1, 2, 3)
    truncate_after(path, 2)
    attempts(path, 3, 4)
    truncate_after(path, 2)
    kept = [[row["attempt"] for row in rows(file)] for file in sorted((tmp_path / "cut").iterdir())]
    assert kept == [[3], [3, 4]]


@pytest.mark.parametrize("boundary", [2, 3])
def test_a_torn_line_is_cut_and_kept_too(tmp_path: Path, boundary: int) -> None:
    path = attempts(tmp_path / "t.jsonl", 1, 2, 3)
    with path.open("ab") as file:
        file.write(b'{"attempt": 4, "lo')
    assert truncate_after(path, boundary) == 4 - boundary
    assert [row["attempt"] for row in rows(path)] == list(range(1, boundary + 1)) and not read_lines(path).torn
    assert (tmp_path / "cut" / "t-0001.jsonl").read_bytes().endswith(b'{"attempt": 4, "lo')


def test_a_line_without_an_attempt_goes_with_the_line_before_it(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", {"attempt": 1}, {"attempt": 1, "validation": {}}, {"note": 1}, {"attempt": 2},
                   {"note": 2}, {"attempt": 3})  # fmt: skip
    assert truncate_after(path, 1) == 3
    assert rows(path) == [{"attempt": 1}, {"attempt": 1, "validation": {}}, {"note": 1}]


def test_cutting_reads_only_the_tail_across_block_boundaries(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", *({"attempt": n, "pad": "y" * (n * 37 % 3000)} for n in range(1, 201)))
    assert truncate_after(path, 61) == 139
    assert [row["attempt"] for row in rows(path)] == list(range(1, 62))
    with path.open("r+b") as file:  # damage far in front of the tail: proof that it is not read
        file.write(b"#")
    assert truncate_after(path, 60) == 1
    assert last_record(path)["attempt"] == 60


def test_cutting_a_foreign_file_is_refused_and_leaves_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("one\ntwo\nthree\n")
    with pytest.raises(RecordsError, match="near the end"):
        truncate_after(path, 1)
    assert path.read_text() == "one\ntwo\nthree\n"


def test_a_cut_that_cannot_be_kept_removes_nothing(tmp_path: Path) -> None:
    path = attempts(tmp_path / "t.jsonl", 1, 2)
    (tmp_path / "cut").write_text("a file is in the way")
    with pytest.raises(StorageError):
        truncate_after(path, 1)
    assert [row["attempt"] for row in rows(path)] == [1, 2]


# --- columns ---


def test_columns_have_one_row_per_line_and_the_kinds_that_were_written(tmp_path: Path) -> None:
    path = written(
        tmp_path / "t.jsonl",
        {"attempt": 1, "loss": 1, "norm": None, "clipped": True, "rates": [0.1, 0.2], "skipped": None, "odd": "nan"},
        {"attempt": 2, "loss": 2.5, "norm": math.inf, "clipped": False, "rates": [0.3], "skipped": "nan loss",
         "odd": 1.0, "validation": {"loss": [3.0, 4]}},
    )  # fmt: skip
    table = columns(path)
    assert all(len(column) == 2 for column in table.values())
    assert (
        table["attempt"].dtype == np.int64 and table["clipped"].dtype == np.bool_ and table["loss"].dtype == np.float64
    )
    assert np.isnan(table["norm"][0]) and table["norm"][1] == math.inf
    assert table["rates.0"].tolist() == [0.1, 0.3] and np.isnan(table["rates.1"][1])
    assert table["skipped"].tolist() == [None, "nan loss"]
    assert np.isnan(table["odd"][0]) and table["odd"][1] == 1.0
    assert np.isnan(table["validation.loss.0"][0]) and table["validation.loss.0"][1] == 3.0
    assert table["validation.loss.1"][1] == 4
    assert list(columns(path, fields=("attempt",))) == ["attempt"]


def test_columns_of_attempts_alone_stay_whole_numbers_beside_evaluation_lines(tmp_path: Path) -> None:
    path = written(
        tmp_path / "t.jsonl",
        {"attempt": 1, "tokens": 7, "loss_sum": 1.0},
        {"attempt": 1, "validation": {"loss": [1.0, 2]}},
    )
    assert columns(path, having="loss_sum")["tokens"].dtype == np.int64
    assert columns(path, having="validation")["validation.loss.1"].tolist() == [2]


def test_columns_do_not_depend_on_where_the_chunks_fall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "t.jsonl", *(
        {"attempt": n, "sometimes": n if n > 3 else None, "text": "a" if n == 5 else None, "late" if n > 4 else "b": n}
        for n in range(1, 8)
    ))  # fmt: skip
    whole = columns(path)
    monkeypatch.setattr("labkit.records.arrays._CHUNK", 2)
    parts = columns(path)
    assert whole.keys() == parts.keys()
    for name, column in whole.items():
        np.testing.assert_array_equal(parts[name], column)
        assert parts[name].dtype == column.dtype


@pytest.mark.slow
def test_a_million_attempts_are_read_into_arrays_in_under_15_seconds(tmp_path: Path) -> None:
    line = encode({
        "attempt": 7, "update": 7, "segment": 0, "epoch": 1, "cursor": 64, "examples": 6400, "tokens": 6400,
        "indices": "0123456789abcdef", "loss_sum": 123.456789123, "loss_count": 64, "grad_norm": 1.23456789,
        "clipped": False, "update_norm": None, "rates_used": [0.001], "rates_next": [0.00099], "scale": None,
        "skipped": None,
    })  # fmt: skip
    path = tmp_path / "t.jsonl"
    path.write_text((line + "\n") * 1_000_000)
    begun = time.process_time()
    table = columns(path)
    assert time.process_time() - begun < 15
    assert len(table["attempt"]) == 1_000_000
