"""The ledger: every run is there, in the same words on every machine, and questions about runs have answers."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from labkit.errors import RecordsError, RunFolderError
from labkit.files import file_digests
from labkit.records import AttemptLog, Ledger, LineLog, note

PATCH = "diff --git a/m.py b/m.py\n-width = 8\n+width = 16\n"


def make(folder: Path, *, status: str | None = "finished", loss: float = 1.0, updates: int = 10, patch: str = "",
         threads: int = 1, data: str = "d1", question: str = "", **config) -> Path:  # fmt: skip
    folder.mkdir(parents=True)
    whole = {"recipe": "digits", "rate": 0.1, "options": {"width": 8}, **config}
    (folder / "config.json").write_text(json.dumps({"format": 1, "run_id": "r", "config": whole}))
    environment = {"format": 1, "threads": {"intra": threads}, "packages": {"torch": "2"}, "git": {"patch": patch}}
    (folder / "environment.json").write_text(json.dumps(environment))
    log = AttemptLog(folder, now=lambda: "2020-01-02T03:04:05.000Z")
    log.begin(name=folder.name, config=whole, recipe="digits", question=question, data={"train": data},
              code={"commit": "abc", "patch": patch})  # fmt: skip
    with LineLog(folder / "trajectory.jsonl") as lines:
        for update in range(1, updates + 1):
            lines.append({"attempt": update, "update": update, "loss_sum": loss})
    if status == "failed":
        log.end("failed", error=ValueError("private"), stage="backward")
    elif status is not None:
        log.end(
            status, measured={"updates": updates, "seconds": 1.5}, metric={"name": "loss", "sum": 4 * loss, "count": 4}
        )
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    top = tmp_path / "runs"
    make(top / "a10", loss=0.25)
    make(top / "a2", rate=0.2, patch=PATCH, threads=2, data="d2", width=8, question="is <b> faster?")
    make(top / "deep" / "er" / "b", status="failed")
    make(top / "deep" / "c", status=None, updates=7)
    begin = (top / "deep" / "c" / "attempts.jsonl").read_text()
    (top / "deep" / "c" / "attempts.jsonl").write_text(begin.replace('"pid":', '"pid":1000000'))  # its process is gone
    (top / "no run").mkdir()
    return top


def test_every_run_below_is_listed_once_in_natural_order_with_its_status(runs: Path) -> None:
    ledger = Ledger(runs)
    assert [(run.name, run.status, run.updates) for run in ledger] == [
        ("a2", "finished", 10), ("a10", "finished", 10), ("deep/c", "crashed", 7), ("deep/er/b", "failed", 10),
    ]  # fmt: skip
    assert ledger["deep/er/b"].summary()["stage"] == "backward" and ledger["a10"].metric == ("loss", 0.25)
    assert len(Ledger(runs / "a10")) == 1


def test_a_settings_file_named_config_json_does_not_hide_the_runs_beside_it(runs: Path) -> None:
    (runs / "config.json").write_text("{}")
    assert len(Ledger(runs)) == 4


def test_filters_take_facts_config_fields_options_patterns_and_text(runs: Path) -> None:
    ledger = Ledger(runs)

    def names(**wanted) -> list[str]:
        return [run.name for run in ledger.where(**wanted)]

    assert names(status="crashed") == ["deep/c"]
    assert names(rate=0.2) == names(rate="0.2") == names(rate="2e-1") == ["a2"]
    assert names(run="a*", width=8) == ["a2", "a10"]
    assert names(run="deep/*", status="failed") == ["deep/er/b"]
    assert names(exact="true") == ["a2", "a10", "deep/c", "deep/er/b"] and names(rate="nonsense") == []
    with pytest.raises(RecordsError, match="'raet'"):
        names(raet=0.2)


def test_the_notebook_table_is_the_same_wherever_and_whenever_and_escapes_what_people_wrote(
    runs: Path, tmp_path: Path
) -> None:
    first = Ledger(runs)._repr_html_()
    moved = tmp_path / "elsewhere" / "x"
    moved.parent.mkdir()
    shutil.move(runs, moved)
    for file in moved.rglob("attempts.jsonl"):
        file.write_text(file.read_text().replace("2020-01-02T03:04:05", "2033-11-12T13:14:15"))
    assert Ledger(moved)._repr_html_() == first
    assert str(tmp_path) not in first and "03:04" not in first and "is &lt;b&gt; faster?" in first
    assert first.count("<tr>") == 5 and "4 runs" in first


def test_csv_and_json_hold_every_run_and_fact(runs: Path, tmp_path: Path) -> None:
    ledger = Ledger(runs)
    rows = list(csv.DictReader(io.StringIO(ledger.to_csv(tmp_path / "l.csv"))))
    stored = json.loads(ledger.to_json(tmp_path / "l.json"))
    assert [row["run"] for row in rows] == [row["run"] for row in stored] == ["a2", "a10", "deep/c", "deep/er/b"]
    assert rows[0]["question"] == "is <b> faster?" and rows[0]["started"] == "2020-01-02T03:04:05.000Z"
    assert stored[1]["value"] == 0.25 and stored[3]["error"] == "ValueError"
    assert (tmp_path / "l.csv").read_text() == ledger.to_csv()
    assert (
        Ledger(runs / "no run").to_csv().startswith("run,status,")
        and json.loads(Ledger(runs / "no run").to_json()) == []
    )


def test_one_run_is_shown_whole(runs: Path) -> None:
    text = Ledger(runs).show("a2")
    facts = (
        "a2: finished|attempt 1: finished|rate: 0.2|options.width: 8|threads.intra: 2|commit: abc|train: d2|patches/"
    )
    for part in (*facts.split("|"), "question: is <b> faster?", "trajectory.jsonl"):
        assert part in text, part
    with pytest.raises(RunFolderError, match="no run is called 'a3'.*a2, a10"):
        Ledger(runs).show("a3")


def test_notes_add_up_and_the_newest_of_each_field_counts(runs: Path) -> None:
    ledger = Ledger(runs)
    ledger.note("a10", question="why?", baseline="a2")
    ledger.note("a10", question="why not?", next_decision="stop", guardrails="loss below 2", text="nan")
    assert Ledger(runs)["a10"].notes == {
        "question": "why not?", "baseline": "a2", "next_decision": "stop", "guardrails": "loss below 2", "text": "nan",
    }  # fmt: skip
    assert len((runs / "a10" / "notes.jsonl").read_text().splitlines()) == 2
    with pytest.raises(RecordsError, match="'color'"):
        note(runs / "a10", color="red")
    with pytest.raises(RunFolderError, match="not a run folder"):
        note(runs / "no run", text="x")


def test_the_difference_of_two_runs_is_named_by_section_and_nothing_else_is(runs: Path) -> None:
    diff = Ledger(runs).diff("a10", "a2")
    found = {section: [(c.name, c.a, c.b) for c in changes] for section, changes in diff.sections.items()}
    assert found["config"] == [("rate", 0.1, 0.2), ("width", "(not there)", 8)]
    assert found["data"] == [("train", "d1", "d2")]
    assert found["environment"] == [("threads.intra", 1, 2)]
    assert [name for name, _, _ in found["code"]] == ["revision.patch_sha256"]
    assert "+width = 16" in diff.patch and "rate: 0.1 -> 0.2" in str(diff) and "threads.intra" in diff._repr_html_()
    assert diff
    same = Ledger(runs).diff("a10", "deep/er/b")
    assert not same and "no difference recorded" in same._repr_html_()


def checkpoint(run: Path, update: int, content: bytes) -> Path:
    folder = run / "checkpoints" / f"update-{update:09d}"
    folder.mkdir(parents=True)
    (folder / "state.pt").write_bytes(content)
    digests = file_digests(folder / "state.pt", len(content))
    (folder / "manifest.json").write_text(json.dumps({"files": {"state.pt": {"sha256": digests}}}))
    return folder


def test_the_run_that_made_a_file_is_found_by_its_bytes_wherever_the_file_went(runs: Path, tmp_path: Path) -> None:
    made = checkpoint(runs / "a2", 5, b"weights of a2" * 100)
    checkpoint(runs / "a10", 5, b"weights of a10" * 100)
    copy = shutil.copy(made / "state.pt", tmp_path / "renamed.bin")
    ledger = Ledger(runs)
    assert [(m.run.name, m.evidence) for m in ledger.made(copy)] == [
        ("a2", "checkpoints/update-000000005/manifest.json")
    ]
    assert {m.run.name for m in ledger.made(made)} == {"a2"}
    assert str(ledger.made(copy)[0]) == "a2: checkpoints/update-000000005/manifest.json"
    (tmp_path / "renamed.bin").write_bytes(b"weights of a2" * 99)
    assert ledger.made(tmp_path / "renamed.bin") == []
    with pytest.raises(RecordsError, match="no file"):
        ledger.made(tmp_path / "nothing")


def test_a_file_larger_than_a_piece_and_one_with_a_single_digest_are_found_too(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labkit.files.PIECE", 1000)
    made = checkpoint(runs / "a2", 5, b"0123456789" * 250)
    assert [m.run.name for m in Ledger(runs).made(shutil.copy(made / "state.pt", tmp_path / "x"))] == ["a2"]
    export = tmp_path / "weights.safetensors"
    export.write_bytes(b"exported")
    log = AttemptLog(runs / "a10")
    log.begin(name="a10", config={})
    log.remark("export", sha256=hashlib.sha256(b"exported").hexdigest())
    log.end("finished")
    assert [(m.run.name, m.evidence) for m in Ledger(runs).made(export)] == [("a10", "attempt 2")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("not json\n{}\n", "is not a record"),
        ('{"format": 99, "kind": "begin"}\n', "format 99"),
        ('{"a": 1}\n', "neither"),
    ],
)
def test_a_foreign_or_newer_run_is_listed_with_its_problem_and_hides_no_other(runs: Path, text: str, why: str) -> None:
    (runs / "a2" / "attempts.jsonl").write_text(text)
    ledger = Ledger(runs)
    assert len(ledger) == 4 and ledger["a2"].status == "unreadable" and why in ledger["a2"].problem
    for shown in (str(ledger), ledger._repr_html_(), ledger.to_csv(), ledger.show("a2")):
        assert why in shown
    assert str(runs) not in ledger._repr_html_()


def test_a_torn_last_line_anywhere_costs_nothing_but_that_line(runs: Path) -> None:
    note(runs / "a2", text="kept")
    for name in ("attempts.jsonl", "trajectory.jsonl", "notes.jsonl"):
        with (runs / "a2" / name).open("ab") as file:
            file.write(b'{"kind": "en')
    run = Ledger(runs)["a2"]
    assert (run.status, run.updates, run.notes["text"], run.problem) == ("finished", 10, "kept", "")


def test_a_damaged_trajectory_config_or_note_leaves_the_run_in_the_list(runs: Path) -> None:
    for name in ("trajectory.jsonl", "config.json", "environment.json", "notes.jsonl"):
        (runs / "deep" / "c" / name).write_text("#\n#\n")
    run = Ledger(runs)["deep/c"]
    assert run.status == "crashed" and run.updates is None and run.config["rate"] == 0.1 and run.environment == {}
    assert "cannot be read" in run.notes["text"] and "deep/c: crashed" in str(run)


def test_a_read_only_folder_reads_like_any_other(runs: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    folders = [path for path in (runs, *runs.rglob("*")) if path.is_dir()]
    for folder in folders:
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        ledger = Ledger(runs)
        assert len(ledger) == 4 and ledger.show("a2") and ledger.to_csv() and ledger._repr_html_()
        if os.geteuid() != 0:  # the administrator may write anywhere
            with pytest.raises(Exception, match="could not open"):
                note(runs / "a2", text="x")
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*")} == before


def test_a_missing_folder_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no folder"):
        Ledger(tmp_path / "nothing")


def test_ten_thousand_runs_are_listed_in_a_few_seconds(tmp_path: Path, runs: Path) -> None:
    entries = (runs / "a10" / "attempts.jsonl").read_bytes()
    top = tmp_path / "many"
    for number in range(10_000):
        folder = top / f"{number // 100}" / f"{number % 100}"
        os.makedirs(folder / "checkpoints")
        (folder / "attempts.jsonl").write_bytes(entries)
    begun = time.process_time()
    ledger = Ledger(top)
    text = ledger._repr_html_()
    seconds = time.process_time() - begun
    assert len(ledger) == 10_000 and text.count("<tr>") == 10_001
    assert seconds < 10, f"{seconds:.1f} s"
