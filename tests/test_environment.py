"""One list of packages, told four times: pyproject.toml, constraints.txt, environment.yml and the wheel must agree."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import workbook

CONDA_NAMES = {"pytorch": "torch", "matplotlib-base": "matplotlib"}
OWNER_SET = {"torch", "jupyterlab", "matplotlib", "ipywidgets", "numpy", "nbval"}


def project() -> dict[str, Any]:
    text = (workbook.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)["project"])


def ranges(lines: list[str]) -> dict[str, Requirement]:
    return {canonicalize_name((requirement := Requirement(line)).name): requirement for line in lines}


def pins() -> dict[str, str]:
    lines = (workbook.ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def conda() -> list[Any]:
    text = (workbook.ROOT / "environment.yml").read_text(encoding="utf-8")
    return list(yaml.safe_load(text)["dependencies"])


def test_conda_lists_the_same_packages_with_the_same_ranges() -> None:
    listed = ranges([line for line in conda() if isinstance(line, str)])
    listed = {canonicalize_name(CONDA_NAMES.get(name, name)): requirement for name, requirement in listed.items()}
    wanted = ranges(project()["dependencies"])
    assert set(listed) - {"python", "pip"} == set(wanted)
    for name, requirement in wanted.items():
        assert listed[name].specifier == requirement.specifier, name


def test_conda_adds_only_this_package_by_pip_so_that_everything_has_one_source() -> None:
    by_pip = [line for line in conda() if isinstance(line, dict)]
    assert by_pip == [{"pip": ["-e ."]}]


def test_python_range_is_the_same_everywhere() -> None:
    python = next(Requirement(line) for line in conda() if isinstance(line, str) and line.startswith("python"))
    assert project()["requires-python"] == ">=3.11"
    assert "3.11.0" in python.specifier and "3.10.9" not in python.specifier
    source = (workbook.ROOT / "workbook.py").read_text(encoding="utf-8")
    assert "sys.version_info < (3, 11)" in source


def test_every_required_package_is_pinned_inside_its_range() -> None:
    extras = project()["optional-dependencies"]
    wanted = ranges(project()["dependencies"] + [line for lines in extras.values() for line in lines])
    pinned = {canonicalize_name(name): version for name, version in pins().items()}
    assert set(wanted) <= set(pinned)
    for name, requirement in wanted.items():
        assert Version(pinned[name]) in requirement.specifier, f"{name}: {pinned[name]} is not in {requirement}"


def test_pins_are_exact_public_versions_in_order() -> None:
    names = list(pins())
    assert names == sorted(names, key=str.lower)
    assert all(Version(version).local is None for version in pins().values()), "a local suffix such as +cpu"
    assert pins()["torch"] == "2.13.0"


def test_every_range_has_a_lower_bound_and_the_run_time_ones_an_upper_bound() -> None:
    for name, requirement in ranges(project()["dependencies"]).items():
        operators = {part.operator for part in requirement.specifier}
        assert operators == {">=", "<"}, f"{name}: {requirement}"


def test_the_six_packages_of_the_workbook_are_required() -> None:
    assert OWNER_SET <= set(ranges(project()["dependencies"]))


def test_every_folder_of_python_files_is_a_package() -> None:
    folders = {path.parent for path in (workbook.ROOT / "labkit").rglob("*.py")}
    missing = [str(folder) for folder in folders if not (folder / "__init__.py").exists()]
    assert missing == [], "setup.py finds packages by __init__.py"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy (a build leaves files beside its source) and without the network."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("labkit", "data"):
        shutil.copytree(workbook.ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "LICENSE", "README.md"):
        if (workbook.ROOT / name).exists():
            shutil.copy(workbook.ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    done = subprocess.run([*command, "--wheel-dir", str(out), str(source)], capture_output=True, text=True, cwd=out)
    assert done.returncode == 0, done.stderr
    return next(out.glob("labkit-*.whl"))


@pytest.mark.slow
def test_the_wheel_carries_code_data_and_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        carried = {name: archive.read(name) for name in archive.namelist()}
    for path in (workbook.ROOT / "labkit").rglob("*.py"):
        assert path.relative_to(workbook.ROOT).as_posix() in carried
    data = [path for path in (workbook.ROOT / "data").iterdir() if path.is_file() and not path.name.startswith(".")]
    assert data, "data/ is empty"
    for path in data:
        assert carried.get(f"labkit/_data/{path.name}") == path.read_bytes(), path.name
    assert any(name.endswith("licenses/LICENSE") for name in carried)


@pytest.mark.slow
def test_an_installed_wheel_works_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", str(site)]
    done = subprocess.run([*command, str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    begin = f"import sys; sys.path.insert(0, {str(site)!r}); import labkit, pathlib; "
    where = subprocess.run(
        [sys.executable, "-c", begin + "print(pathlib.Path(labkit.__file__).parent)"],
        cwd=elsewhere, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(where.stdout.strip()) == site / "labkit"
    train = begin + "from labkit.__main__ import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", train, "train", "digits", "--run", "run", "--updates", "2"],
        cwd=elsewhere, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (elsewhere / "run").is_dir()
