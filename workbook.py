#!/usr/bin/env python3
"""The one command of this workbook: set it up, open the lessons, run the tests.

    python3 workbook.py lab            open the lessons in JupyterLab (the first start installs what is needed)
    python3 workbook.py test           everything a developer runs before a commit
    python3 workbook.py --help         all commands

Only the standard library is used here, because this file runs before anything is installed.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036  said here in one line, before newer syntax or modules fail
    sys.exit(
        "workbook: this is Python %d.%d, but Python 3.11 or newer is needed. "  # noqa: UP031
        "Install a newer one and call it by name, for example: python3.12 workbook.py lab" % sys.version_info[:2]
    )

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
STATE = VENV / "workbook.json"
NOTEBOOKS = ROOT / "notebooks"
LEARNER = ROOT / "my_lessons"
FIRST_LESSON = "00_start_here.ipynb"
REQUIREMENTS = ("pyproject.toml", "constraints.txt")
CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
GIGABYTE = 10**9


class Stop(Exception):
    """Something that the person at the keyboard has to decide or repair: one line, with the remedy."""


def say(text: str) -> None:
    print(f"workbook: {text}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------------- the environment


def requirement_digest() -> str:
    """SHA-256 over the files that say what is installed."""
    digest = hashlib.sha256()
    for name in REQUIREMENTS:
        digest.update(name.encode() + b"\0" + (ROOT / name).read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return digest.hexdigest()


def venv_python(folder: Path = VENV) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def read_state() -> dict[str, Any]:
    """What the last set-up left in .venv; {} where there is nothing readable."""
    try:
        state = json.loads(STATE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def write_state(**state: Any) -> None:
    beside = STATE.with_suffix(".part")
    beside.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, STATE)


def is_current(state: dict[str, Any], extra: str) -> bool:
    """Whether .venv holds a finished set-up of these requirement files, made in this folder, with what `extra` adds."""
    return (
        state.get("status") == "complete"
        and state.get("requirements") == requirement_digest()
        and state.get("folder") == str(ROOT)
        and (not extra or extra in state.get("extras", []))
        and venv_python().exists()
    )


def environment(options: argparse.Namespace, extra: str = "") -> str:
    """Path of a Python that has everything installed: .venv's, made or repaired first where needed, or this one."""
    if options.here:
        return prepare_here(extra)
    state = read_state()
    if not is_current(state, extra):
        extras = sorted({*state.get("extras", []), extra} - {""})
        make_venv(state)
        install(str(venv_python()), extras, choose_torch=not options.default_torch)
        write_state(status="complete", requirements=requirement_digest(), folder=str(ROOT), extras=extras)
        say("the environment is ready")
    return str(venv_python())


def make_venv(state: dict[str, Any]) -> None:
    """Leave a working .venv marked as unfinished; a half-made one is thrown away, a foreign one is left alone."""
    if VENV.exists() and not state:
        if any(VENV.iterdir()):
            raise Stop(
                f"{VENV} was not made by workbook.py, so it is left alone. Rename or remove it and start again, "
                "or run with its Python and --here"
            )
    reusable = state.get("status") == "complete" and state.get("folder") == str(ROOT) and venv_python().exists()
    if state and not reusable:
        say("the last set-up did not finish, or this folder has moved: making .venv anew (downloads are kept)")
        remove_venv()
    if reusable:
        write_state(**{**state, "status": "updating"})
        return
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            raise Stop(
                f"this Python ({sys.executable}) has no module {module!r}. On Debian or Ubuntu: sudo apt install "
                "python3-venv; elsewhere install Python from python.org; or use an environment you have with --here"
            )
    require_disk(3 * GIGABYTE)
    say(f"making the environment in {VENV} (once; takes a few minutes and about 2 GB)")
    VENV.mkdir(exist_ok=True)
    write_state(status="started")  # before anything else, so that an interrupted set-up is recognised as ours
    base = getattr(sys, "_base_executable", sys.executable)
    made = subprocess.run([base, "-m", "venv", str(VENV)], capture_output=True, text=True)
    if made.returncode != 0:
        lines = (made.stdout + made.stderr).strip().splitlines() or ["no message"]
        raise Stop(f"making .venv failed: {lines[-1]} Run it again, or use an environment you have with --here")


def remove_venv() -> None:
    if Path(sys.prefix).resolve() == VENV:
        raise Stop("this is .venv's own Python, and .venv must be made anew: start workbook.py with another Python")
    state_last = [path for path in VENV.iterdir() if path != STATE] + [STATE]
    for path in state_last:  # the mark goes last: a removal that is interrupted is still recognised as ours
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def require_disk(needed: int) -> None:
    free = shutil.disk_usage(ROOT).free
    if free < needed:
        raise Stop(
            f"{free / GIGABYTE:.1f} GB are free at {ROOT}, the set-up needs about {needed / GIGABYTE:.0f} GB: "
            "free some space (or move this folder to a larger disk) and run the same command again"
        )


def install(python: str, extras: Sequence[str], *, choose_torch: bool) -> None:
    """Install labkit (editable, so that changes count at once) and all it needs, at the tested versions."""
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    if choose_torch:
        take_cpu_torch(python, constraints)
    say("installing the tested versions of " + ("all packages" if "dev" in extras else "the lessons' packages"))
    pip(python, ["install", *constraints, "--editable", str(ROOT) + (f"[{','.join(extras)}]" if extras else "")])


def has_nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def take_cpu_torch(python: str, constraints: Sequence[str]) -> None:
    """On Linux without an NVIDIA driver: the CPU build instead of gigabytes of CUDA libraries that could not run.

    It asks pip what it would fetch; where that is no CUDA build, or cannot be found out, nothing happens here.
    """
    if not sys.platform.startswith("linux") or has_nvidia_driver() or torch_is_installed(python):
        return
    report = VENV / "torch-report.json"
    ask = ["install", "--quiet", "--dry-run", "--report", str(report), *constraints, "torch"]
    try:
        asked = subprocess.run([python, "-m", "pip", *ask], capture_output=True, timeout=300)
        wanted = json.loads(report.read_text(encoding="utf-8"))["install"] if asked.returncode == 0 else []
        names = [item["metadata"]["name"].lower() for item in wanted]
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired):
        return
    if not any(name.startswith("nvidia") for name in names):
        return
    version = next(item["metadata"]["version"] for item in wanted if item["metadata"]["name"] == "torch")
    say(
        "no NVIDIA driver on this machine, so the CPU build of torch is taken (200 MB instead of about 3 GB). "
        "For the CUDA build: python3 workbook.py setup --default-torch"
    )
    cpu = [f"torch=={version.split('+')[0]}+cpu", "--no-deps", "--index-url", CPU_TORCH_INDEX]
    if subprocess.run([python, "-m", "pip", "install", *cpu]).returncode != 0:
        say(f"{CPU_TORCH_INDEX} did not answer: going on with the default build, about 3 GB of downloads")
        require_disk(9 * GIGABYTE)


def torch_is_installed(python: str) -> bool:
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return subprocess.run([python, "-c", look]).returncode == 0


PIP_FAULTS = (  # the first pattern found in pip's log names the fault
    (
        r"No space left on device|Errno 28\b|WinError 112|Disk quota exceeded",
        "the disk is full. Free some space (about 3 GB) and run the same command again",
    ),
    (
        r"Failed to establish a new connection|name resolution|getaddrinfo failed|NewConnectionError|ConnectTimeout"
        r"|ReadTimeout|ProxyError|SSLError|Network is unreachable|Connection refused|ConnectionResetError",
        "packages could not be downloaded. Check the network (or the proxy: HTTPS_PROXY) and run the same command "
        "again; what was downloaded is kept",
    ),
    (
        r"externally-managed-environment",
        "this Python is managed by the operating system and takes no packages. Run without --here",
    ),
    (
        r"Permission denied|Errno 13\b|WinError 5\b",
        "a folder cannot be written. Copy this workbook to a folder of your own and run the same command again",
    ),
    (
        r"No matching distribution found for",
        "a package has no build for this Python and machine. Python 3.11 to 3.13 on Linux, Windows or an Apple-silicon "
        "Mac is what torch supports: install such a Python and call it by name, e.g. python3.12 workbook.py lab",
    ),
)


def diagnose(log: str) -> str:
    """One sentence with the remedy for a failed pip run, from its log."""
    return next((remedy for pattern, remedy in PIP_FAULTS if re.search(pattern, log)), "")


def pip(python: str, arguments: list[str]) -> None:
    """Run pip where its progress can be seen, and turn a failure into one line."""
    log = (VENV if Path(python) == venv_python() else ROOT) / "workbook-pip.log"
    log.unlink(missing_ok=True)
    quiet = [] if sys.stdout.isatty() else ["--quiet", "--progress-bar", "off"]
    command = [python, "-m", "pip", *arguments, *quiet, "--disable-pip-version-check", "--log", str(log)]
    if subprocess.run(command).returncode == 0:
        log.unlink(missing_ok=True)
        return
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    raise Stop(diagnose(text) or f"installing failed; the last lines above say why, the whole log is {log}")


def prepare_here(extra: str) -> str:
    """Use the running Python: install only what it lacks, in ranges, so that a hub's own torch stays."""
    missing = missing_here(extra)
    if missing:
        say(f"--here: this Python lacks {', '.join(missing)}: installing")
        pip(sys.executable, ["install", "--editable", str(ROOT) + (f"[{extra}]" if extra else "")])
    return sys.executable


def missing_here(extra: str) -> list[str]:
    """Names of required distributions that the running Python lacks, labkit itself among them."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = ["labkit", *project["dependencies"], *(project["optional-dependencies"][extra] if extra else [])]
    missing = []
    for line in wanted:
        name = re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    return missing


# ---------------------------------------------------------------------------------------------- the learner's copies


def lesson_digest(text: str) -> str:
    """Digest of what a lesson says, not of its stored outputs: re-running the lessons makes no new lesson."""
    cells = json.loads(text)["cells"]
    return hashlib.sha256(json.dumps([[c["cell_type"], c["source"]] for c in cells]).encode()).hexdigest()


def without_outputs(text: str) -> str:
    """A lesson as a learner gets it: no outputs yet, so that a guess is a guess."""
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def hand_out(lessons: Path = NOTEBOOKS, learner: Path = LEARNER) -> list[str]:
    """Copy lessons that the learner does not have; put a newer one beside; overwrite nothing. Returns new names."""
    learner.mkdir(exist_ok=True)
    register = learner / ".handed_out.json"
    try:
        handed: dict[str, list[str]] = json.loads(register.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        handed = {}
    added = []
    for lesson in sorted(lessons.glob("*.ipynb")):
        text = lesson.read_text(encoding="utf-8")
        digest, known = lesson_digest(text), handed.get(lesson.name, [])
        target = learner / lesson.name
        if target.exists():
            if digest in known or lesson_digest_of(target) == digest:
                continue
            target = next(p for p in newer_names(target) if not p.exists())
        with open(target, "x", encoding="utf-8", newline="\n") as file:  # "x": refuses to overwrite
            file.write(without_outputs(text))
        handed[lesson.name] = [*known, digest]
        added.append(target.name)
    register.write_text(json.dumps(handed, indent=1) + "\n", encoding="utf-8")
    return added


def lesson_digest_of(copy: Path) -> str:
    try:
        return lesson_digest(copy.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def newer_names(target: Path) -> Iterator[Path]:
    """00_x.new.ipynb, 00_x.new2.ipynb, ..."""
    yield target.with_name(f"{target.stem}.new.ipynb")
    for number in range(2, 10_000):
        yield target.with_name(f"{target.stem}.new{number}.ipynb")


# ---------------------------------------------------------------------------------------------- commands


def lab_arguments(port: int, root: Path, page: str) -> list[str]:
    """Arguments for `python -m jupyterlab`: this machine only, token kept, and nothing asked of the internet."""
    arguments = [
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={root}",
        f"--LabApp.default_url=/lab/tree/{page}",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
        "--KernelManager.transport_encryption=auto",  # else each kernel warns that other users could listen
        "--log-level=WARN",
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--allow-root")  # in a container the only user is often root
    return arguments


def lab_environment() -> dict[str, str]:
    """The environment variables for JupyterLab and kernels: .venv's kernel before one of the same name elsewhere."""
    return {**os.environ, "JUPYTER_PREFER_ENV_PATH": "1"}


def no_news(folder: Path) -> dict[str, str]:
    """Write a default setting into `folder` and return the variable that makes JupyterLab read it.

    Without it JupyterLab asks at its first start about news, even where no news address is set. It is a default of
    this start only: a learner's own setting wins, and no file of another JupyterLab is touched.
    """
    quiet = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}
    labconfig = folder / "labconfig"
    labconfig.mkdir(parents=True, exist_ok=True)
    (labconfig / "default_setting_overrides.json").write_text(json.dumps(quiet, indent=1) + "\n", encoding="utf-8")
    others = os.environ.get("JUPYTER_CONFIG_PATH", "")
    return {"JUPYTER_CONFIG_PATH": os.pathsep.join([str(folder), *([others] if others else [])])}


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if os.name != "nt":  # elsewhere this option lets a port be taken twice
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def choose_port(wanted: int | None) -> int:
    if wanted is not None:
        if not is_free(wanted):
            raise Stop(f"port {wanted} is in use. Leave out --port to take a free one, or name another")
        return wanted
    for port in range(8888, 8988):
        if is_free(port):
            return port
    raise Stop("no port from 8888 to 8987 is free. Name a free one with --port")


def lab(options: argparse.Namespace) -> int:
    port = choose_port(options.port)
    python = environment(options)
    added = hand_out()
    if added:
        say(f"new in my_lessons/: {', '.join(added)}")
    first = LEARNER / FIRST_LESSON
    page = f"{LEARNER.name}/{FIRST_LESSON}" if first.exists() else LEARNER.name
    if options.here and any(name in os.environ for name in ("JUPYTERHUB_USER", "BINDER_SERVICE_HOST", "COLAB_GPU")):
        say(f"JupyterLab is already running here: open {page}")
        return 0
    say(f"JupyterLab starts on http://127.0.0.1:{port} (this machine only). To stop it: Ctrl-C, here")
    command = [python, "-m", "jupyterlab", *lab_arguments(port, ROOT, page)]
    if options.no_browser:
        command.append("--no-browser")
    variables = {**lab_environment(), **no_news(LEARNER / ".jupyter")}
    if os.name == "nt":
        return subprocess.run(command, env=variables).returncode
    os.chdir(ROOT)
    os.execve(python, command, variables)  # JupyterLab takes our place: Ctrl-C and signals reach it directly


def test_environment() -> dict[str, str]:
    one_thread = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    quiet = {"JUPYTER_PLATFORM_DIRS": "1", "LABKIT_QUIET": "1"}
    return {**lab_environment(), **one_thread, **quiet}  # the last one: no warning about folders


NBVAL = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=60"]
TWO_AT_A_TIME = ["-n", "2", "--dist", "loadscope"]  # loadscope: one notebook, or one test file, stays in one process


def test_parts(which: str, extra: Sequence[str]) -> dict[str, list[str]]:
    """Name and pytest arguments of each part of `test`; `which` is "fast", "slow" (only those) or "all"."""
    paths = [name for name in extra if not name.startswith("-") and (ROOT / name.split("::")[0]).exists()]
    if paths:
        return {"chosen": [*(NBVAL if any(".ipynb" in name for name in paths) else []), *extra]}
    chosen = {"fast": " and not slow", "slow": " and slow", "all": ""}[which]
    parts = {
        "notebooks": [*NBVAL, *TWO_AT_A_TIME, "notebooks"],
        "browser": ["tests", "-m", f"browser{chosen}"],  # alone, because a browser under load is not what a learner has
        "package": ["tests", *TWO_AT_A_TIME, "-m", f"not browser{chosen}"],
    }
    if which == "slow":
        del parts["notebooks"]
    return {name: [*arguments, *extra] for name, arguments in parts.items()}


def test(options: argparse.Namespace) -> int:
    python = environment(options, "dev")
    if not options.pytest and not list(NOTEBOOKS.glob("*.ipynb")):
        raise Stop(f"there is no lesson in {NOTEBOOKS}: this checkout is incomplete, fetch it again")
    which = "all" if options.all else "slow" if options.slow else "fast"
    commands = {name: ["-m", "pytest", *given] for name, given in test_parts(which, options.pytest).items()}
    if which != "fast" and not options.pytest:
        commands = {"stress": [str(ROOT / "tests" / "stress.py"), "--kills", "40", "--seconds", "180"], **commands}
    results: dict[str, tuple[int, float]] = {}
    for name, arguments in commands.items():
        say(f"testing: {name}")
        began = time.monotonic()
        code = subprocess.run([python, *arguments], cwd=ROOT, env=test_environment()).returncode
        nothing_chosen = code == 5 and bool(options.pytest)  # pytest's status when -k and the like leave no test
        results[name] = (0 if nothing_chosen else code, time.monotonic() - began)
    for name, (code, seconds) in results.items():
        say(f"{'passed' if code == 0 else 'FAILED'}  {name:10} {seconds:6.0f} s")
    return 1 if any(code for code, _ in results.values()) else 0


def setup(options: argparse.Namespace) -> int:
    say(f"ready; its Python is {environment(options, 'dev' if options.dev else '')}")
    return 0


def lessons(options: argparse.Namespace) -> int:
    """Re-execute the lessons, in the environment that has the notebook packages."""
    python = environment(options, "dev")
    names = [f"{name.removesuffix('.ipynb')}.ipynb" for name in options.names] or [
        path.name for path in sorted(NOTEBOOKS.glob("*.ipynb"))
    ]
    missing = [name for name in names if not (NOTEBOOKS / name).exists()]
    if missing or not names:
        raise Stop(f"no such lesson in notebooks/: {', '.join(missing) or '(none there at all)'}")
    code = "import sys, workbook; sys.exit(workbook.execute_lessons(sys.argv[1:]))"
    return subprocess.run([python, "-c", code, *names], cwd=ROOT, env=test_environment()).returncode


def execute_lessons(names: Sequence[str]) -> int:
    failed = 0
    for number, name in enumerate(names, start=1):
        print(f"[{number}/{len(names)}] {name:32}", end=" ", flush=True)
        began = time.monotonic()
        problem = execute_lesson(NOTEBOOKS / name)
        seconds, kilobytes = time.monotonic() - began, (NOTEBOOKS / name).stat().st_size / 1000
        print(problem or f"{seconds:5.1f} s  {kilobytes:4.0f} kB", flush=True)
        failed += bool(problem)
    return 1 if failed else 0


def execute_lesson(path: Path) -> str:
    """Run a notebook from top to bottom in a fresh kernel and store its outputs. Returns "" or what went wrong."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        store_widget_state=False,
        record_timing=False,
        extra_arguments=["--log-level=ERROR"],  # a lesson's progress lines are not the place for kernel chatter
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        return f"FAILED, stored outputs left as they were\n{error}"
    tidy(notebook)
    beside = path.with_suffix(".part")
    nbformat.write(notebook, beside)
    os.replace(beside, path)
    return ""


def tidy(notebook: Any) -> None:
    """Leave in an executed notebook only what is the same after every run and means something to a reader."""
    notebook.metadata.clear()
    notebook.metadata["kernelspec"] = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    notebook.metadata["language_info"] = {"name": "python"}
    count = 0
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        count += 1
        cell.execution_count = count
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = count
            # A widget's id names an object of a kernel that is gone; a reader would see "model not found".
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)


def bench(options: argparse.Namespace) -> int:
    """Run tests/benchmarks/NAME.py; each prints a table, or with --json one JSON object."""
    python = environment(options, "dev")
    folder = ROOT / "tests" / "benchmarks"
    known = {path.stem: path for path in sorted(folder.glob("[!_]*.py"))}
    names = options.names or list(known)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise Stop(f"no such benchmark: {', '.join(unknown) or '(none there)'}. Known: {', '.join(known) or 'none'}")
    results, worst = {}, 0
    for name in names:
        if not options.json:
            say(f"measuring: {name}")
        command = [python, str(known[name]), *(["--json"] if options.json else [])]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE if options.json else None, text=True)
        worst = worst or done.returncode
        if options.json:
            try:
                results[name] = json.loads(done.stdout)
            except ValueError:
                results[name] = {"error": f"exit status {done.returncode}, no JSON printed"}
                worst = worst or 1
    if options.json:
        print(json.dumps(results, indent=1))
    return worst


def stress(options: argparse.Namespace) -> int:
    """Kill and resume real runs for a while."""
    python = environment(options, "dev")
    arguments = ["--kills", str(options.kills), "--seconds", str(options.seconds)]
    command = [python, str(ROOT / "tests" / "stress.py"), *arguments]
    return subprocess.run(command, cwd=ROOT, env=test_environment()).returncode


def release(options: argparse.Namespace) -> int:
    """Write student copies of the lessons."""
    python = environment(options)
    command = [python, "-m", "labkit.lab.release", "--out", str(Path(options.out).resolve())]
    return subprocess.run([*command, *(["--solutions"] if options.solutions else [])], cwd=ROOT).returncode


# ---------------------------------------------------------------------------------------------- the command line


def parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--here", action="store_true", help="use the Python that runs this, not .venv (hubs, Binder)")
    shared.add_argument("--default-torch", action="store_true", help="CUDA build also without an NVIDIA driver")
    top = argparse.ArgumentParser(
        prog="workbook.py",
        description="Lessons on training as a recoverable state machine, and the tests of labkit, their package.",
        epilog="New here? Run: python3 workbook.py lab",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", parents=[shared])
        sub.set_defaults(run=run)
        return sub

    sub = add("lab", lab, "open the lessons in JupyterLab; the first start sets everything up")
    sub.add_argument("--no-browser", action="store_true", help="print the address instead of opening a browser")
    sub.add_argument("--port", type=int, help="port on this machine (default: the first free one from 8888)")
    sub = add("test", test, "test labkit, all lessons, and lesson 00 in a browser; what follows -- goes to pytest")
    more = sub.add_mutually_exclusive_group()
    more.add_argument("--all", action="store_true", help="the slow sets and the stress test too")
    more.add_argument("--slow", action="store_true", help="only the slow sets and the stress test")
    sub = add("setup", setup, "only make or repair the environment")
    sub.add_argument("--dev", action="store_true", help="with the developers' tools")
    sub = add("lessons", lessons, "run the lessons from top to bottom and store their outputs")
    sub.add_argument("names", nargs="*", metavar="LESSON", help="for example 03_microbatch_weighting (default: all)")
    sub = add("bench", bench, "measure the budgets of labkit")
    sub.add_argument("names", nargs="*", metavar="NAME", help="one benchmark (default: all)")
    sub.add_argument("--json", action="store_true", help="one JSON object for machines")
    sub = add("stress", stress, "kill and resume real runs at random moments, and compare them with straight ones")
    sub.add_argument("--kills", type=int, default=50, help="stop after so many kills (default 50)")
    sub.add_argument("--seconds", type=int, default=300, help="or after so many seconds (default 300)")
    sub = add("release", release, "write copies of the lessons for students, without solutions")
    sub.add_argument("--out", required=True, metavar="DIR", help="folder to write to")
    sub.add_argument("--solutions", action="store_true", help="keep the solutions, for instructors")
    return top


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn what the machine refuses into one line with a remedy."""
    try:
        yield
    except PermissionError as error:
        raise Stop(f"{error.filename} cannot be written. Copy this workbook to a folder of your own") from error
    except OSError as error:
        if error.errno in (28, 122):  # full disk, exceeded quota
            raise Stop("the disk is full. Free some space (about 3 GB) and run the same command again") from error
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    rest: list[str] = []
    if "--" in given:
        cut = given.index("--")
        given, rest = given[:cut], given[cut + 1 :]
    options = parser().parse_args(given)
    options.pytest = rest
    missing = [name for name in REQUIREMENTS if not (ROOT / name).exists()]
    if missing:
        say(f"{', '.join(missing)} not found beside {Path(__file__).name}: keep it in the folder that it came in")
        return 1
    try:
        with plain_errors():
            return int(options.run(options))
    except Stop as stop:
        say(f"{stop}.")
        return 1
    except KeyboardInterrupt:
        say("interrupted. Run the same command again: a half-made environment is repaired")
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
