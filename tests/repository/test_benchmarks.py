"""Benchmarks rot unless something runs them: `make bench-quick` and `make bench-docker` run each once."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = "keep_compose.py"  # another benchmark's docker; nobody starts it by hand
PROGRAMS = sorted(
    path.name
    for path in (ROOT / "bench").glob("*.py")
    if 'if __name__ == "__main__":' in path.read_text() and path.name != STAND_IN
)


def recipe(target: str) -> str:
    """The lines below `target:` in the Makefile."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found, target
    return found[1]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_benchmark_is_run_once_by_a_quick_target(program):
    assert f"bench/{program} " in recipe("bench-quick") + recipe("bench-docker")


def test_the_quick_targets_write_nothing_into_the_docs():
    assert "docs/" not in recipe("bench-quick") + recipe("bench-docker")


def test_the_package_is_this_repository_s_whatever_else_is_installed(tmp_path):
    """Python prefers a regular package anywhere on its path to a folder without __init__.py."""
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/__init__.py").touch()
    argv = [sys.executable, "-I", "-c", f"import sys; sys.path[:0] = {[str(ROOT), str(tmp_path)]}; import bench; print(bench.__file__)"]  # fmt: skip
    assert (
        subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip() == f"{ROOT}/bench/__init__.py"
    )


def test_benchmarks_import_each_other_by_the_package_only():
    """Imported by two names, a module is there twice, and its exceptions do not catch each other."""
    modules = {path.stem for path in (ROOT / "bench").glob("*.py")}
    flat = []
    for path in (ROOT / "bench").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            flat += [f"{path.name}: {name}" for name in names if name.split(".")[0] in modules]
    assert flat == []
