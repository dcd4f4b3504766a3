"""What pyproject.toml cannot say: packages are found by looking, and the folder data/ travels as labkit._data."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["labkit", "labkit.*"]), "labkit._data"],
    package_dir={"labkit": "labkit", "labkit._data": "data"},
)
