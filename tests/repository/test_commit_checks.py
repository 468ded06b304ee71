"""What pre-commit runs is what the clone has: no download, all packages, and one oldest Python everywhere."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.conftest import ROOT

CONFIG = (ROOT / ".pre-commit-config.yaml").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_pre_commit_downloads_nothing():
    assert set(re.findall(r"repo: (\S+)", CONFIG)) == {"local"}
    assert set(re.findall(r"language: (\S+)", CONFIG)) == {"system"}
    programs = {entry.split()[0] for entry in re.findall(r"entry: (.+)", CONFIG)}
    assert programs == {".venv/bin/ruff", ".venv/bin/mypy", ".venv/bin/lint-imports"}


@pytest.mark.parametrize("package", PROJECT["tool"]["mypy"]["packages"])
def test_mypy_checks_changed_modules_of_every_package(package):
    pattern = re.search(r"id: mypy\n(?:.*\n)*?\s+files: (.+)", CONFIG)
    found = next(ROOT.glob(f"*/{package}/__init__.py")).relative_to(ROOT).as_posix()
    assert pattern is not None
    assert re.search(pattern[1], found)


def test_one_python_is_the_oldest_everywhere():
    oldest = (ROOT / ".python-version").read_text().strip()
    asked = {tomllib.loads(path.read_text())["project"]["requires-python"] for path in ROOT.glob("*/pyproject.toml")}
    assert asked == {f">={oldest}"}
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
