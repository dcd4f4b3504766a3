"""JupyterLab in a real browser: start it as `workbook.py lab` does, open a notebook, run it, use its controls, look.

Everything stays on this machine: the server listens on loopback with a token of its own, the browser gets an empty
profile, and requests to any other address are recorded so that a test can assert that there were none.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import workbook

SCREENSHOTS = Path(__file__).parent / "screenshots"
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
CHROMIUM_FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> str | None:
    """Path of an installed Chromium or Chrome, or None."""
    return next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)


def why_not() -> str:
    """Why there can be no browser test here, with what to install; "" if there can."""
    if chromium() is None:
        return "no Chromium found: install it (Debian: apt install chromium; elsewhere Chromium or Chrome, on the PATH)"
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "no Playwright found: python3 workbook.py setup --dev installs it"
    return ""


@dataclass(frozen=True)
class Server:
    """A running JupyterLab: its address and its token."""

    url: str
    token: str


@contextmanager
def jupyter_lab(root: Path, scratch: Path, seconds: float = 60) -> Iterator[Server]:
    """JupyterLab on a free loopback port over the folder `root`; its settings and logs live in `scratch`."""
    port, token = free_port(), secrets.token_hex(16)
    server = Server(f"http://127.0.0.1:{port}", token)
    folders = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    folders += ("JUPYTERLAB_SETTINGS_DIR", "IPYTHONDIR")
    own = {**{name: str(scratch / name.lower()) for name in folders}, **workbook.no_news(scratch / "no_news")}
    command = [sys.executable, "-m", "jupyterlab", *workbook.lab_arguments(port, root, ""), "--no-browser"]
    command += [f"--IdentityProvider.token={token}", "--LabApp.expose_app_in_browser=True"]
    log = scratch / "jupyterlab.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, env={**workbook.test_environment(), **own}, cwd=root, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            wait_for_server(server, process, log, seconds)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)


def free_port() -> int:
    return next(port for port in range(20_000 + os.getpid() % 20_000, 60_000) if workbook.is_free(port))


def wait_for_server(server: Server, process: subprocess.Popen[bytes], log: Path, seconds: float) -> None:
    request = urllib.request.Request(f"{server.url}/api/status", headers={"Authorization": f"token {server.token}"})
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(request, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not answer within {seconds} s; its log:\n{log.read_text(errors='replace')}")


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as driver:
        chrome = driver.chromium.launch(executable_path=chromium(), args=[*CHROMIUM_FLAGS, *root], headless=True)
        try:
            yield chrome
        finally:
            chrome.close()


RUN_ALL = "() => window.jupyterapp.commands.execute('notebook:run-all-cells')"
READY = """() => {
  const panel = window.jupyterapp && window.jupyterapp.shell.currentWidget;
  const kernel = panel && panel.sessionContext && panel.sessionContext.session && panel.sessionContext.session.kernel;
  return !!kernel && kernel.status === 'idle';
}"""
CELLS = """() => window.jupyterapp.shell.currentWidget.content.widgets.map(cell => cell.model.toJSON())"""
SHOW_CELL = """async index => {
  const notebook = window.jupyterapp.shell.currentWidget.content;
  notebook.activeCellIndex = index;
  await notebook.scrollToItem(index, 'start');
}"""
COUNT = """index => window.jupyterapp.shell.currentWidget.content.widgets[index].model.executionCount"""
COUNTED = """([index, before]) => {
  const count = window.jupyterapp.shell.currentWidget.content.widgets[index].model.executionCount;
  return count !== null && count !== before;
}"""
INTERRUPT = ".jp-NotebookPanel-toolbar [data-jp-item-name='interrupt'] jp-button"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


@dataclass
class NotebookPage:
    """One open notebook in the browser."""

    page: Any
    server: Server
    name: str
    elsewhere: list[str] = field(default_factory=list)
    script_errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        local = (self.server.url, self.server.url.replace("http", "ws", 1), "blob:", "data:")
        self.page.on("request", lambda r: None if r.url.startswith(local) else self.elsewhere.append(r.url))
        self.page.on("pageerror", lambda error: self.script_errors.append(str(error)))

    def open(self, seconds: float = 60) -> None:
        """Open it in JupyterLab with a fresh layout, and wait until its kernel is idle."""
        self.page.goto(f"{self.server.url}/lab/tree/{self.name}?token={self.server.token}&reset")
        self.page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=seconds * 1000)
        self.page.wait_for_function(READY, timeout=seconds * 1000)

    def run_all(self, seconds: float = 180) -> None:
        """Run every cell as the Run menu does, and wait until all have an execution count and the kernel is idle."""
        self.page.set_default_timeout(seconds * 1000)
        self.page.evaluate(RUN_ALL)
        self.page.wait_for_function(READY, timeout=seconds * 1000)

    def press_run(self, number: int) -> int | None:
        """Select a cell and press Shift+Enter, without waiting; returns the execution count that it had before."""
        before: int | None = self.page.evaluate(COUNT, number)
        self.show(number).locator(".jp-InputPrompt").click()
        self.page.keyboard.press("Shift+Enter")
        return before

    def wait_run(self, number: int, before: int | None, seconds: float = 120) -> None:
        """Wait until the cell has another execution count than `before` and the kernel is idle."""
        self.page.wait_for_function(COUNTED, arg=[number, before], timeout=seconds * 1000)
        self.page.wait_for_function(READY, timeout=seconds * 1000)

    def run_cell(self, number: int, seconds: float = 120) -> str:
        """Run one cell with Shift+Enter and wait for its end; returns what it shows."""
        self.wait_run(number, self.press_run(number), seconds)
        return self.output(number)

    def type_into(self, number: int, text: str) -> None:
        """Click into a cell, select all that stands there and put `text` in its place."""
        self.show(number).locator(".cm-content").click()
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.insert_text(text)  # in one piece: no indent and no bracket is added by the editor

    def press_stop(self) -> None:
        """The button with the square in the notebook's toolbar."""
        self.page.locator(INTERRUPT).click()

    def output(self, number: int) -> str:
        """What a cell shows now: its printed text and its HTML; an error as its name and message."""
        shown = []
        for output in self.cells()[number]["outputs"]:
            if output["output_type"] == "error":
                shown.append(f"{output['ename']}: {output['evalue']}")
            else:
                shown.append(output.get("text") or output.get("data", {}).get("text/html", ""))
        return "".join("".join(part) for part in shown)

    def cells(self) -> list[dict[str, Any]]:
        """The cells with their present outputs, in the form of a notebook file."""
        return list(self.page.evaluate(CELLS))

    def problems(self) -> list[str]:
        """Cells that did not run, raised, or wrote to stderr."""
        found = []
        for number, cell in enumerate(self.cells()):
            if cell["cell_type"] != "code":
                continue
            if cell["execution_count"] is None and cell["source"]:  # an empty cell never gets a count
                found.append(f"cell {number} did not run")
            for output in cell["outputs"]:
                if output["output_type"] == "error":
                    found.append(f"cell {number} raised {output['ename']}: {output['evalue']}")
                elif output.get("name") == "stderr":
                    found.append(f"cell {number} wrote to stderr: {output['text']}")
        return found

    def widget_cells(self) -> list[int]:
        """Numbers of the cells that show a widget."""
        return [
            number
            for number, cell in enumerate(self.cells())
            if any(WIDGET_VIEW in output.get("data", {}) for output in cell.get("outputs", []))
        ]

    def show(self, number: int) -> Any:
        """Scroll to a cell (JupyterLab draws only what is near the view) and return its locator."""
        self.page.evaluate(SHOW_CELL, number)
        cell = self.page.locator(f".jp-Notebook .jp-Cell[data-windowed-list-index='{number}']")
        cell.wait_for()
        return cell

    def screenshot(self, name: str) -> Path:
        """Keep a picture of the window in tests/screenshots (not in git)."""
        SCREENSHOTS.mkdir(exist_ok=True)
        path = SCREENSHOTS / f"{name}.png"
        self.page.screenshot(path=str(path))
        return path


def press_until_changed(page: Any, handle: Any, key: str, read: Any, presses: int = 5, seconds: float = 15) -> Any:
    """Press a key on a focused control until what `read` returns is another than before; returns the new reading.

    A slider at its end does not move, so both directions may have to be tried; then the last reading comes back.
    """
    before = read()
    for _ in range(presses):
        handle.press(key)
        end = time.monotonic() + seconds / presses
        while time.monotonic() < end:
            if read() != before:
                page.wait_for_timeout(300)  # picture and sentence arrive in two messages
                return read()
            page.wait_for_timeout(50)
    return read()
