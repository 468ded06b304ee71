"""Benchmarks rot unless something runs them: `make bench SIZE=quick` runs each once."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted(
    path.name for path in (ROOT / "bench").glob("*.py") if 'if __name__ == "__main__":' in path.read_text()
)


def commands(*words: str) -> str:
    """What `make bench` would run."""
    argv = ["make", "--dry-run", "bench", *words]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("words", [(), ("SIZE=quick",)], ids=["whole", "quick"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_benchmark_is_run_in_both_sizes(program, words):
    assert f"bench/{program}" in commands(*words)


def test_benchmarks_write_nothing_into_the_docs():
    assert "docs/" not in commands() + commands("SIZE=quick")


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
