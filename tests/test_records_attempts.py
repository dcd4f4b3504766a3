"""Attempts and environment: every way to end is told, a killed process is recognised, and a run never fails by it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from labkit.errors import RecordsError, StorageError
from labkit.records import AttemptLog, Stages, environment, read_attempts
from labkit.records.revision import git_state

SECRET = "Q-private-example-Q"


def begin(folder: Path, **facts) -> AttemptLog:
    log = AttemptLog(folder)
    log.begin(name="a", config={"rate": 0.1}, **facts)
    return log


def test_an_attempt_is_on_disk_from_its_first_moment_and_its_end_completes_it(tmp_path: Path) -> None:
    log = begin(tmp_path, question="does it learn?", parent={"update": 47}, overrides={"threads": [1, 2]})
    assert read_attempts(tmp_path)[0].status == "running"
    log.remark("fallback", checkpoint="update-000000048", why="digest")
    log.end("finished", measured={"updates": 100, "seconds": 2.5}, metric={"name": "loss", "sum": 3.0, "count": 4},
            selected={"update": 90}, next_decision="try a higher rate")  # fmt: skip
    (attempt,) = read_attempts(tmp_path)
    assert attempt.status == "finished" and attempt.begin["question"] == "does it learn?"
    assert attempt.begin["parent"] == {"update": 47} and attempt.begin["overrides"] == {"threads": [1, 2]}
    assert attempt.end["metric"]["sum"] == 3.0 and attempt.remarks[0]["what"] == "fallback"
    assert attempt.begin["started"] <= attempt.end["ended"]


def test_attempts_are_numbered_on_and_words_like_nan_stay_words(tmp_path: Path) -> None:
    for name in ("nan", "inf"):
        log = AttemptLog(tmp_path)
        log.begin(name=name, config={"max_norm": float("inf")})
        log.end("stopped")
    assert [(a.number, a.begin["name"], a.begin["config"]) for a in read_attempts(tmp_path)] == [
        (1, "nan", {"max_norm": float("inf")}),
        (2, "inf", {"max_norm": float("inf")}),
    ]


def test_a_failure_records_stage_class_and_place_and_never_the_message(tmp_path: Path) -> None:
    log, stages = begin(tmp_path), Stages()
    try:
        with stages("first forward"):
            raise KeyError(SECRET)
    except KeyError as error:
        log.end("failed", error=error)
    (attempt,) = read_attempts(tmp_path)
    assert (attempt.status, attempt.stage, attempt.end["error"]) == ("failed", "first forward", "KeyError")
    assert attempt.end["where"].startswith("test_records_attempts.py:")
    assert SECRET not in (tmp_path / "attempts.jsonl").read_text()
    assert str(Path(__file__).parent) not in (tmp_path / "attempts.jsonl").read_text()


def test_a_killed_process_reads_as_crashed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from labkit.records.attempts import AttemptLog;"
        "AttemptLog(sys.argv[1]).begin(name='a', config={}); print('begun', flush=True); time.sleep(60)"
    )
    root = str(Path(__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root}
    )
    with process:
        assert process.stdout is not None and process.stdout.readline() == b"begun\n"
        if sys.platform == "linux":  # elsewhere another process cannot be recognised, and reads as crashed
            assert read_attempts(tmp_path)[0].status == "running"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert read_attempts(tmp_path)[0].status == "crashed"


def test_an_attempt_followed_by_another_is_not_running_any_more(tmp_path: Path) -> None:
    begin(tmp_path)
    begin(tmp_path)
    assert [a.status for a in read_attempts(tmp_path)] == ["crashed", "running"]


def test_a_torn_last_entry_is_as_if_it_had_not_been_written(tmp_path: Path) -> None:
    begin(tmp_path).end("stopped")
    path = tmp_path / "attempts.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    assert [a.status for a in read_attempts(tmp_path)] == ["running"]
    begin(tmp_path).end("finished")
    assert [a.status for a in read_attempts(tmp_path)] == ["crashed", "finished"]


def test_misuse_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="no attempt has begun"):
        AttemptLog(tmp_path).end("finished")
    log = begin(tmp_path)
    with pytest.raises(RecordsError, match="begun already"):
        log.begin(name="a", config={})
    with pytest.raises(RecordsError, match="cannot end as 'done'.*finished"):
        log.end("done")
    with pytest.raises(RecordsError, match="'number' has a name that labkit uses"):
        log.remark("x", number=3)
    with pytest.raises(RecordsError, match="not a plain value"):
        log.remark("x", weights=torch.zeros(1))
    log.end("finished")


def test_a_foreign_attempts_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "attempts.jsonl").write_text('{"kind": "somebody else"}\n')
    with pytest.raises(RecordsError, match="neither begin, remark nor end"):
        read_attempts(tmp_path)


def test_a_folder_that_takes_no_files_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        AttemptLog(tmp_path / "missing").begin(name="a", config={})


def test_the_patch_goes_to_a_file_of_its_own_shared_by_attempts_with_the_same_one(tmp_path: Path) -> None:
    patch = "diff --git a/x b/x\n\udcff odd byte\r\n"
    for _ in range(2):
        begin(tmp_path, code={"commit": "abc", "patch": patch}).end("stopped")
    begin(tmp_path, code={"commit": "abc", "patch": ""}).end("stopped")
    codes = [a.begin["code"] for a in read_attempts(tmp_path)]
    assert codes[0] == codes[1] and "patch" not in codes[0] and codes[2] == {"commit": "abc"}
    (kept,) = (tmp_path / "patches").iterdir()
    assert codes[0]["patch_file"] == f"patches/{kept.name}"
    assert kept.read_bytes() == b"diff --git a/x b/x\n\xff odd byte\r\n"


# --- environment ---


def git(folder: Path, *words: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    who = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false", "-c", "core.autocrlf=false"]
    return subprocess.run(
        ["git", *who, *words], cwd=folder, env=clean, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    top = tmp_path / "repo"
    (top / "pkg").mkdir(parents=True)
    (top / "pkg" / "model.py").write_text("width = 8\n")
    (top / "gone.py").write_text("x = 1\n")
    (top / "blob.bin").write_bytes(bytes(range(256)))
    (top / ".gitignore").write_text("runs/\n")
    git(top, "init", "-q")
    git(top, "add", "-A")
    git(top, "commit", "-qm", "first")
    return top


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }


def test_commit_and_patch_give_back_the_code_that_ran_byte_for_byte(repository: Path, tmp_path: Path) -> None:
    git(repository, "config", "diff.noprefix", "true")  # a user's settings must not spoil the patch
    git(repository, "config", "color.ui", "always")
    git(repository, "config", "diff.external", "/bin/true")
    (repository / "pkg" / "model.py").write_bytes(b"width = 16\r\nname = '\xff'\n")
    (repository / "blob.bin").write_bytes(bytes(reversed(range(256))))
    (repository / "gone.py").unlink()
    (repository / "pkg" / "new naïve.py").write_text("y = 2\n")
    git(repository, "add", "pkg/model.py")  # staged or not makes no difference
    state = git_state(repository / "pkg" / "model.py")
    assert state["commit"] == git(repository, "rev-parse", "HEAD").strip() and state["changed"]
    patch = tmp_path / "it.patch"
    patch.write_bytes(json.loads(json.dumps(state["patch"])).encode(errors="surrogateescape"))
    git(tmp_path, "clone", "-q", str(repository), "copy")
    git(tmp_path / "copy", "apply", str(patch))
    assert tree(tmp_path / "copy") == tree(repository)


def test_new_data_files_are_named_and_not_copied(repository: Path) -> None:
    (repository / "patients.csv").write_text(SECRET)
    (repository / "runs").mkdir()
    (repository / "runs" / "own.py").write_text(SECRET)
    state = git_state(repository)
    assert SECRET not in json.dumps(state) and not state["changed"]
    assert state["new_files_not_stored"] == {"count": 1, "first": ["patients.csv"]}


def test_a_repository_without_a_commit_has_everything_in_its_patch(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("a = 1\n")
    state = git_state(tmp_path)
    assert state["commit"] is None and "+a = 1" in state["patch"]


def test_without_a_repository_or_without_git_the_reason_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "not a git repository" in git_state(tmp_path)["unreadable"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "FileNotFoundError" in git_state(tmp_path)["unreadable"]
    assert environment(tmp_path / "missing")["git"]["unreadable"]


def test_looking_changes_nothing_in_the_repository(repository: Path) -> None:
    (repository / "gone.py").write_text("x = 2\n")
    os.utime(repository / "pkg" / "model.py", (10**9, 10**9))  # git would like to write this down in its index

    def stamps() -> dict[str, tuple[int, int]]:
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in (repository / ".git").rglob("*")}

    before = stamps()
    git_state(repository)
    assert stamps() == before


def test_the_environment_says_what_a_number_may_depend_on_in_plain_values(repository: Path) -> None:
    found = environment(repository)
    assert json.loads(json.dumps(found)) == found
    assert (
        found["packages"]["torch"] == torch.__version__.split("+")[0] or found["packages"]["torch"] == torch.__version__
    )
    assert found["torch"]["version"] == torch.__version__ and found["threads"]["intra"] == torch.get_num_threads()
    assert found["cpu_capability"] == torch.backends.cpu.get_cpu_capability() and found["device"] == {"type": "cpu"}
    assert found["determinism"]["algorithms"] is torch.are_deterministic_algorithms_enabled()
    assert found["numeric"]["matmul_precision"] == torch.get_float32_matmul_precision()
    assert set(found["attention"]) == {"flash", "memory_efficient", "math", "cudnn"}
    unreadable = [name for name, value in found.items() if isinstance(value, dict) and "unreadable" in value]
    assert set(unreadable) <= {"labkit_git"}


def test_the_environment_follows_the_settings_in_force(tmp_path: Path) -> None:
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("high")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = environment(tmp_path)
    assert found["determinism"]["algorithms"] and found["numeric"]["matmul_precision"] == "high"
    assert found["numeric"]["autocast"]["cpu"] == {"enabled": True, "dtype": "torch.bfloat16"}


def test_a_part_that_cannot_be_read_does_not_fail_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("no such thing here")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", broken)
    monkeypatch.setattr("importlib.metadata.distributions", broken)
    found = environment(tmp_path)
    assert (
        found["packages"] == {"unreadable": "RuntimeError: no such thing here"} == found["numeric"]["matmul_precision"]
    )
    assert found["threads"]["intra"] == torch.get_num_threads()


def test_no_other_environment_variable_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", SECRET)
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    found = environment(tmp_path)
    found.pop("labkit_git")  # the patch of labkit itself, in which this file may be new
    assert SECRET not in json.dumps(found) and found["variables"]["PYTHONHASHSEED"] == "7"


def test_records_open_no_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", lambda *_, **__: pytest.fail("a socket was opened"))
    begin(tmp_path, code=environment(tmp_path)["git"]).end("finished")
    assert read_attempts(tmp_path)[0].status == "finished"
