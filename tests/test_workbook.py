"""workbook.py: no copy is overwritten, faults become one line with a remedy, a half-made environment is repaired."""

from __future__ import annotations

import argparse
import ast
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import browser
import nbformat
import pytest

import workbook

SOURCE = workbook.ROOT / "workbook.py"


def options(**given: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"here": False, "default_torch": False, "pytest": [], **given})


def write_lesson(path: Path, *sources: str, output: str = "1\n") -> None:
    cells = []
    for number, source in enumerate(sources):
        stored = nbformat.v4.new_output("stream", name="stdout", text=output)
        cells.append(nbformat.v4.new_code_cell(source, id=f"cell-{number}", execution_count=1, outputs=[stored]))
    path.parent.mkdir(exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of its own for workbook.py: no environment yet, small requirement files."""
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'labkit'\n")
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    places = {"ROOT": tmp_path, "VENV": tmp_path / ".venv", "STATE": tmp_path / ".venv" / "workbook.json"}
    places |= {"NOTEBOOKS": tmp_path / "notebooks", "LEARNER": tmp_path / "my_lessons"}
    for name, value in places.items():
        monkeypatch.setattr(workbook, name, value)
    monkeypatch.setattr(workbook, "venv_python", lambda: tmp_path / ".venv" / "bin" / "python")
    return tmp_path


# ------------------------------------------------------------------------- the learner's copies


def test_copies_arrive_without_outputs_and_only_once(tree: Path) -> None:
    write_lesson(workbook.NOTEBOOKS / "00_a.ipynb", "print(1)")
    assert workbook.hand_out(workbook.NOTEBOOKS, workbook.LEARNER) == ["00_a.ipynb"]
    copy = nbformat.read(workbook.LEARNER / "00_a.ipynb", as_version=4)
    assert [(cell.source, cell.outputs, cell.execution_count) for cell in copy.cells] == [("print(1)", [], None)]
    assert workbook.hand_out(workbook.NOTEBOOKS, workbook.LEARNER) == []


def test_an_existing_copy_is_never_overwritten_and_a_newer_lesson_is_put_beside(tree: Path) -> None:
    lesson, learner = workbook.NOTEBOOKS / "00_a.ipynb", workbook.LEARNER
    write_lesson(lesson, "print(1)")
    workbook.hand_out(workbook.NOTEBOOKS, learner)
    mine = b"my own work, not even a notebook any more"
    (learner / "00_a.ipynb").write_bytes(mine)
    assert workbook.hand_out(workbook.NOTEBOOKS, learner) == []
    write_lesson(lesson, "print(2)")
    assert workbook.hand_out(workbook.NOTEBOOKS, learner) == ["00_a.new.ipynb"]
    (learner / "00_a.new.ipynb").write_bytes(mine)
    assert workbook.hand_out(workbook.NOTEBOOKS, learner) == []
    write_lesson(lesson, "print(3)")
    assert workbook.hand_out(workbook.NOTEBOOKS, learner) == ["00_a.new2.ipynb"]
    assert (learner / "00_a.ipynb").read_bytes() == mine == (learner / "00_a.new.ipynb").read_bytes()
    assert "print(3)" in (learner / "00_a.new2.ipynb").read_text()


def test_a_lesson_that_was_only_run_again_is_no_newer_lesson(tree: Path) -> None:
    write_lesson(workbook.NOTEBOOKS / "00_a.ipynb", "print(1)")
    workbook.hand_out(workbook.NOTEBOOKS, workbook.LEARNER)
    write_lesson(workbook.NOTEBOOKS / "00_a.ipynb", "print(1)", output="other\n")
    assert workbook.hand_out(workbook.NOTEBOOKS, workbook.LEARNER) == []


def test_without_the_register_an_untouched_copy_is_recognised_and_a_changed_one_kept(tree: Path) -> None:
    for name in ("00_a.ipynb", "01_b.ipynb"):
        write_lesson(workbook.NOTEBOOKS / name, "print(1)")
    workbook.hand_out(workbook.NOTEBOOKS, workbook.LEARNER)
    write_lesson(workbook.LEARNER / "01_b.ipynb", "my answer")
    (workbook.LEARNER / ".handed_out.json").write_text("{torn")
    assert workbook.hand_out(workbook.NOTEBOOKS, workbook.LEARNER) == ["01_b.new.ipynb"]
    assert "my answer" in (workbook.LEARNER / "01_b.ipynb").read_text()


def test_a_copy_that_was_removed_comes_back(tree: Path) -> None:
    write_lesson(workbook.NOTEBOOKS / "00_a.ipynb", "print(1)")
    workbook.hand_out(workbook.NOTEBOOKS, workbook.LEARNER)
    (workbook.LEARNER / "00_a.ipynb").unlink()
    assert workbook.hand_out(workbook.NOTEBOOKS, workbook.LEARNER) == ["00_a.ipynb"]


# ------------------------------------------------------------------------- the environment


@pytest.fixture
def installs(tree: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The extras of each installation; nothing is really installed, and .venv holds an empty python."""
    calls: list[list[str]] = []
    monkeypatch.setattr(workbook, "install", lambda python, extras, choose_torch: calls.append(list(extras)))
    real = subprocess.run

    def run(command: list[str], **given: Any) -> Any:
        if command[1:3] == ["-m", "venv"]:
            (Path(command[3]) / "bin").mkdir()
            (Path(command[3]) / "bin" / "python").write_text("")
            return subprocess.CompletedProcess(command, 0, "", "")
        return real(command, **given)

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_the_second_start_installs_nothing(installs: list[list[str]]) -> None:
    first, second = workbook.environment(options()), workbook.environment(options())
    assert first == second and installs == [[]]


@pytest.mark.parametrize("name", workbook.REQUIREMENTS)
def test_changed_requirement_files_are_installed_again(tree: Path, installs: list[list[str]], name: str) -> None:
    workbook.environment(options())
    (tree / name).write_text((tree / name).read_text() + "# more\n")
    workbook.environment(options())
    assert len(installs) == 2


def test_line_endings_of_another_system_change_nothing(tree: Path, installs: list[list[str]]) -> None:
    workbook.environment(options())
    file = tree / "constraints.txt"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    workbook.environment(options())
    assert len(installs) == 1


def test_the_developers_tools_are_added_once_and_then_kept(tree: Path, installs: list[list[str]]) -> None:
    for extra in ("", "dev", "", "dev"):
        workbook.environment(options(), extra)
    assert installs == [[], ["dev"]]
    (tree / "constraints.txt").write_text("torch==2.14.0\n")
    workbook.environment(options())
    assert installs[-1] == ["dev"]


@pytest.mark.parametrize("fault", ["killed while making .venv", "killed while updating", "python gone", "folder moved"])
def test_a_half_made_environment_is_made_anew(tree: Path, installs: list[list[str]], fault: str) -> None:
    workbook.environment(options())
    leftover = tree / ".venv" / "leftover"
    leftover.write_text("half")
    state = workbook.read_state()
    if fault == "killed while making .venv":
        workbook.write_state(status="started")
    elif fault == "killed while updating":
        workbook.write_state(**{**state, "status": "updating"})
    elif fault == "python gone":
        workbook.venv_python().unlink()
    else:
        workbook.write_state(**{**state, "folder": "/somewhere/else"})
    workbook.environment(options())
    assert len(installs) == 2 and not leftover.exists()
    assert workbook.read_state()["status"] == "complete"


def test_an_installation_that_fails_leaves_a_mark_that_the_next_run_repairs(
    tree: Path, installs: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(python: str, extras: list[str], choose_torch: bool) -> None:
        raise workbook.Stop("packages could not be downloaded")

    with monkeypatch.context() as patch:
        patch.setattr(workbook, "install", fails)
        with pytest.raises(workbook.Stop):
            workbook.environment(options())
    assert workbook.read_state()["status"] != "complete"
    workbook.environment(options())
    assert workbook.read_state()["status"] == "complete"


def test_an_update_that_dies_half_way_is_not_taken_for_finished(
    tree: Path, installs: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    workbook.environment(options())
    old = (tree / "constraints.txt").read_text()
    (tree / "constraints.txt").write_text("torch==2.14.0\n")

    def dies(python: str, extras: list[str], choose_torch: bool) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(workbook, "install", dies)
        with pytest.raises(KeyboardInterrupt):
            workbook.environment(options())
    (tree / "constraints.txt").write_text(old)  # now the old stamp would fit again, but .venv holds half an update
    workbook.environment(options())
    assert len(installs) == 2


def test_an_environment_that_is_not_ours_is_left_alone(tree: Path, installs: list[list[str]]) -> None:
    (tree / ".venv").mkdir()
    (tree / ".venv" / "pyvenv.cfg").write_text("mine")
    with pytest.raises(workbook.Stop, match="not made by workbook.py.*--here"):
        workbook.environment(options())
    assert (tree / ".venv" / "pyvenv.cfg").read_text() == "mine" and installs == []


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_a_python_without_venv_is_told_what_to_install(
    tree: Path, installs: list[list[str]], module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[[str], Any] = workbook.importlib.util.find_spec
    monkeypatch.setattr(workbook.importlib.util, "find_spec", lambda name: None if name == module else real(name))
    with pytest.raises(workbook.Stop, match="python3-venv"):
        workbook.environment(options())
    assert not (tree / ".venv").exists()


def test_a_full_disk_is_told_before_anything_is_made(
    tree: Path, installs: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: argparse.Namespace(free=10**9))
    with pytest.raises(workbook.Stop, match=r"1\.0 GB are free.*needs about 3 GB"):
        workbook.environment(options())
    assert not (tree / ".venv").exists()


@pytest.mark.parametrize(
    ("log", "remedy"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...: Failed to establish a new "
         "connection: [Errno -3] Temporary failure in name resolution')\nERROR: No matching distribution found for "
         "torch", "Check the network"),
        ("error: externally-managed-environment", "without --here"),
        ("ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied: '/usr/lib'", "own"),
        ("ERROR: No matching distribution found for torch<3,>=2.10", "has no build for this Python"),
    ],
)  # fmt: skip
def test_a_failed_installation_is_explained_from_its_log(log: str, remedy: str) -> None:
    assert remedy in workbook.diagnose(log)


def test_a_failed_installation_for_another_reason_names_the_log(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(workbook.Stop, match="workbook-pip.log"):
        workbook.pip(sys.executable, ["install", "--no-index", "--unknown-option"])


def test_without_network_pip_ends_in_one_line(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    closed = "http://127.0.0.1:9/simple"  # the port `discard`: nothing listens there
    arguments = ["install", "--index-url", closed, "--retries", "0", "--no-cache-dir", "no-such-package-for-a-test"]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
            patch.delenv(name, raising=False)
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        with pytest.raises(workbook.Stop, match="Check the network"):
            workbook.pip(sys.executable, arguments)


# ------------------------------------------------------------------------- the CPU build of torch


@pytest.fixture
def pip_calls(tree: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A machine on which pip would bring what `brings` says; records what is installed."""
    machine: dict[str, Any] = {"brings": ["torch", "nvidia-cublas"], "calls": [], "answers": 0, "asked": 0}
    (tree / ".venv").mkdir()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(workbook, "has_nvidia_driver", lambda: False)
    monkeypatch.setattr(workbook, "torch_is_installed", lambda python: False)

    def run(command: list[str], **given: Any) -> Any:
        if "--report" in command:
            listed = [{"metadata": {"name": name, "version": "2.13.0"}} for name in machine["brings"]]
            Path(command[command.index("--report") + 1]).write_text(json.dumps({"install": listed}))
            return subprocess.CompletedProcess(command, machine["asked"])
        machine["calls"].append(command)
        return subprocess.CompletedProcess(command, machine["answers"])

    monkeypatch.setattr(subprocess, "run", run)
    return machine


def test_without_a_driver_the_cpu_build_is_taken_and_said(
    pip_calls: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    workbook.take_cpu_torch("python", [])
    (command,) = pip_calls["calls"]
    assert "torch==2.13.0+cpu" in command and workbook.CPU_TORCH_INDEX in command
    assert "no NVIDIA driver" in capsys.readouterr().err


def test_where_the_cpu_build_is_out_of_reach_the_set_up_goes_on(
    pip_calls: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    pip_calls["answers"] = 1
    workbook.take_cpu_torch("python", [])
    assert "going on with the default build" in capsys.readouterr().err


@pytest.mark.parametrize("reason", ["pip finds a CPU build", "pip cannot say", "a driver", "not Linux", "installed"])
def test_otherwise_pip_decides(pip_calls: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason == "pip finds a CPU build":
        pip_calls["brings"] = ["torch", "numpy"]
    elif reason == "pip cannot say":
        pip_calls["asked"] = 1
    elif reason == "a driver":
        monkeypatch.setattr(workbook, "has_nvidia_driver", lambda: True)
    elif reason == "not Linux":
        monkeypatch.setattr(sys, "platform", "darwin")
    else:
        monkeypatch.setattr(workbook, "torch_is_installed", lambda python: True)
    workbook.take_cpu_torch("python", [])
    assert pip_calls["calls"] == []


# ------------------------------------------------------------------------- --here


def test_here_names_what_the_running_python_lacks(tree: Path) -> None:
    wanted = "[project]\ndependencies = ['numpy>=2,<3', 'no-such-package>=1']\n"
    (tree / "pyproject.toml").write_text(wanted + "[project.optional-dependencies]\ndev = ['pytest>=8']\n")
    assert workbook.missing_here("dev") == ["no-such-package"]


def test_here_installs_only_when_something_is_missing(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(workbook, "pip", lambda python, arguments: calls.append(arguments))
    monkeypatch.setattr(workbook, "missing_here", lambda extra: [])
    assert workbook.environment(options(here=True)) == sys.executable and calls == []
    monkeypatch.setattr(workbook, "missing_here", lambda extra: ["torch"])
    workbook.environment(options(here=True), "dev")
    assert calls == [["install", "--editable", f"{tree}[dev]"]]
    assert not (tree / ".venv").exists()


# ------------------------------------------------------------------------- one line for every fault


def run_workbook(*arguments: str, cwd: Path | None = None, script: Path = SOURCE) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(script), *arguments], cwd=cwd, capture_output=True, text=True)


def test_an_old_python_is_told_in_one_line(tmp_path: Path) -> None:
    code = f"import sys; sys.version_info = (3, 9, 1); exec(open({str(SOURCE)!r}).read())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Python 3.9" in done.stderr and "3.11 or newer" in done.stderr


def test_an_old_python_can_read_the_file_far_enough_to_say_so() -> None:
    ast.parse(SOURCE.read_text(encoding="utf-8"), feature_version=(3, 7))


def test_workbook_needs_nothing_but_the_standard_library() -> None:
    imports = [node for node in ast.parse(SOURCE.read_text(encoding="utf-8")).body if isinstance(node, ast.Import)]
    froms = [n for n in ast.parse(SOURCE.read_text(encoding="utf-8")).body if isinstance(n, ast.ImportFrom)]
    names = {alias.name for node in imports for alias in node.names} | {str(node.module) for node in froms}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


def test_help_works_from_any_folder_and_names_every_command(tmp_path: Path) -> None:
    done = run_workbook("--help", cwd=tmp_path)
    assert done.returncode == 0
    for name in ("lab", "test", "setup", "lessons", "bench", "stress", "release"):
        assert f"\n    {name} " in done.stdout
        assert run_workbook(name, "--help", cwd=tmp_path).returncode == 0


def test_a_lone_copy_of_the_file_says_what_is_missing(tmp_path: Path) -> None:
    shutil.copy(SOURCE, tmp_path / "workbook.py")
    done = run_workbook("lab", script=tmp_path / "workbook.py")
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1
    assert "pyproject.toml, constraints.txt not found" in done.stderr


@pytest.mark.parametrize(
    ("fault", "line", "status"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full", 1),
        (PermissionError(errno.EACCES, "Permission denied", "/there"), "/there cannot be written", 1),
        (workbook.Stop("so and so. Do this"), "so and so. Do this", 1),
        (KeyboardInterrupt(), "half-made environment is repaired", 130),
    ],
)
def test_what_the_machine_refuses_becomes_one_line(
    fault: BaseException, line: str, status: int, tree: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def refuse(*_: Any) -> str:
        raise fault

    monkeypatch.setattr(workbook, "environment", refuse)
    assert workbook.main(["setup"]) == status
    error = capsys.readouterr().err
    assert line in error and len(error.strip().splitlines()) == 1


def test_a_fault_of_ours_is_not_hidden(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbook, "environment", lambda *_: {}["missing"])
    with pytest.raises(KeyError):
        workbook.main(["setup"])


# ------------------------------------------------------------------------- lab


def test_a_port_in_use_is_refused_when_asked_for_and_passed_over_when_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(workbook.Stop, match=f"port {port} is in use.*--port"):
            workbook.choose_port(port)
        monkeypatch.setattr(workbook, "range", lambda *_: [port, port + 1], raising=False)
        assert workbook.is_free(port + 1) is False or workbook.choose_port(None) == port + 1


def test_lab_listens_on_this_machine_only_and_keeps_its_token() -> None:
    arguments = workbook.lab_arguments(8888, Path("x"), "page")
    assert "--ServerApp.ip=127.0.0.1" in arguments
    text = " ".join(arguments).lower()
    assert "token" not in text and "password" not in text and "xsrf" not in text and "allow_origin" not in text


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_lab_starts_asks_for_its_token_and_stops_when_told(tmp_path: Path) -> None:
    for name in ("workbook.py", *workbook.REQUIREMENTS):
        shutil.copy(workbook.ROOT / name, tmp_path / name)
    write_lesson(tmp_path / "notebooks" / workbook.FIRST_LESSON, "print(1)")
    port = browser.free_port()
    command = [sys.executable, str(tmp_path / "workbook.py"), "lab", "--here", "--no-browser", "--port", str(port)]
    folders = {"HOME": str(tmp_path / "home"), **workbook.test_environment()}
    log = tmp_path / "log"
    with open(log, "wb") as output:
        process = subprocess.Popen(command, env=folders, stdout=output, stderr=subprocess.STDOUT, cwd=tmp_path.parent)
    try:
        end = time.monotonic() + 60
        while "?token=" not in log.read_text() and time.monotonic() < end and process.poll() is None:
            time.sleep(0.2)
        text = log.read_text()
        assert f"http://127.0.0.1:{port}/lab/tree/my_lessons/{workbook.FIRST_LESSON}?token=" in text
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/contents", timeout=10)
        refused.value.close()
        assert refused.value.code == 403
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    assert (tmp_path / "my_lessons" / workbook.FIRST_LESSON).exists()


# ------------------------------------------------------------------------- test, lessons, bench


def test_fast_slow_and_all_split_the_tests_without_a_gap() -> None:
    marks = {which: workbook.test_parts(which, []) for which in ("fast", "slow", "all")}
    assert set(marks["fast"]) == set(marks["all"]) == {"notebooks", "browser", "package"}
    assert marks["fast"]["package"][-1] == "not browser and not slow"
    assert marks["slow"]["package"][-1] == "not browser and slow"
    assert marks["all"]["package"][-1] == "not browser"
    assert "--nbval" in marks["fast"]["notebooks"] and "--nbval-lax" not in marks["fast"]["notebooks"]


def test_a_path_after_the_two_dashes_is_all_that_runs() -> None:
    assert workbook.test_parts("fast", ["tests/test_workbook.py", "-x"]) == {"chosen": ["tests/test_workbook.py", "-x"]}
    assert all(part[-2:] == ["-k", "order"] for part in workbook.test_parts("fast", ["-k", "order"]).values())


@pytest.mark.parametrize(("codes", "status"), [((0, 0, 0), 0), ((1, 0, 0), 1), ((0, 0, 2), 1), ((0, 5, 0), 1)])
def test_test_fails_if_any_part_fails_or_is_empty(
    codes: tuple[int, ...], status: int, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lesson(tree / "notebooks" / "00_a.ipynb", "1")
    left = list(codes)
    monkeypatch.setattr(workbook, "environment", lambda *_: "python")
    monkeypatch.setattr(subprocess, "run", lambda c, **_: subprocess.CompletedProcess(c, left.pop(0)))
    assert workbook.main(["test"]) == status and left == []


def test_a_checkout_without_lessons_does_not_pass(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbook, "environment", lambda *_: "python")
    assert workbook.main(["test"]) == 1


def test_lessons_stores_what_a_fresh_kernel_prints_the_same_every_time(tree: Path) -> None:
    path = tree / "notebooks" / "00_a.ipynb"
    write_lesson(path, "import ipywidgets\nprint(1 + 1)", "ipywidgets.IntSlider(3)", output="old\n")
    assert workbook.execute_lesson(path) == ""
    first = path.read_bytes()
    notebook = nbformat.read(path, as_version=4)
    assert [cell.execution_count for cell in notebook.cells] == [1, 2]
    assert notebook.cells[0].outputs[0].text == "2\n"
    assert list(notebook.cells[1].outputs[0].data) == ["text/plain"]
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert workbook.execute_lesson(path) == "" and path.read_bytes() == first


def test_a_lesson_that_fails_keeps_its_stored_outputs(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lesson(tree / "notebooks" / "00_a.ipynb", "1 / 0")
    before = (tree / "notebooks" / "00_a.ipynb").read_bytes()
    assert workbook.execute_lessons(["00_a.ipynb"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().out
    assert (tree / "notebooks" / "00_a.ipynb").read_bytes() == before


def test_an_unknown_lesson_is_named(tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(workbook, "environment", lambda *_: sys.executable)
    assert workbook.main(["lessons", "77_nothing"]) == 1
    assert "77_nothing.ipynb" in capsys.readouterr().err


def test_bench_collects_one_json_object_and_fails_with_its_worst(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workbook, "environment", lambda *_: sys.executable)
    folder = tree / "tests" / "benchmarks"
    folder.mkdir(parents=True)
    (folder / "good.py").write_text("import sys; assert sys.argv[1:] == ['--json']; print('{\"ratio\": 1.0}')")
    (folder / "_shared.py").write_text("raise SystemExit('not a benchmark')")
    assert workbook.main(["bench", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"good": {"ratio": 1.0}}
    (folder / "over.py").write_text("print('{\"ratio\": 9.0}'); raise SystemExit(1)")
    assert workbook.main(["bench", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["over"] == {"ratio": 9.0}
    assert workbook.main(["bench", "nothing"]) == 1
    assert "good, over" in capsys.readouterr().err
