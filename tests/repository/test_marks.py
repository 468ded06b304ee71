"""`slow(but=[..])` and the fixture `nothing_beside` choose tests as tests/README.md says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT, clean_environ, like

TESTS = """
import pytest

@pytest.mark.slow(but=["native-*", "x [[2]"])
@pytest.mark.parametrize("case", ["native-2", "native", "x [2]", "torchrun-2"])
def test_cases(case):
    pass

@pytest.mark.slow
def test_waits():
    pass

@pytest.mark.usefixtures("nothing_beside")
def test_bounds_seconds():
    pass
"""


def collected(folder, *options, text=TESTS):
    """Names of the tests that pytest chooses with the project's own conftest, and its exit code."""
    (folder / "test_a.py").write_text(text)
    argv = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", folder, "-p", "tests.conftest", "-q", *options]  # fmt: skip
    environ = clean_environ(PYTEST_ADDOPTS="", PYTHONPATH=str(ROOT))
    done = subprocess.run([*map(str, argv), str(folder)], cwd=folder, env=environ, capture_output=True, text=True)
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line], done


@pytest.mark.parametrize(
    ("name", "pattern", "fits"),
    [("native-2", "native-*", True), ("native", "native-*", False), ("x [2]", "x [2]", True), ("x 2", "x [2]", False)],
)
def test_a_star_stands_for_any_text_and_nothing_else_is_special(name, pattern, fits):
    assert like(name, pattern) is fits


def test_make_test_has_the_cases_that_slow_names(tmp_path):
    names, _ = collected(tmp_path, "--collect-only", "-m", "not slow", text=TESTS.replace("x [[2]", "x [2]"))
    assert names == ["test_cases[native-2]", "test_cases[x [2]]", "test_bounds_seconds"]


def test_a_case_that_failed_runs_once_more_without_the_others(tmp_path):
    text = TESTS.replace("x [[2]", "x [2]").replace(
        "test_cases(case):\n    pass", "test_cases(case):\n    assert case != 'native-2'"
    )
    for _ in range(2):
        _, done = collected(tmp_path, "--last-failed", text=text)
        assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 failed in " in done.stdout


def test_a_name_that_no_case_has_is_an_error(tmp_path):
    _, done = collected(tmp_path, "--collect-only")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_cases[x [[2]]" in done.stderr


@pytest.mark.slow
def test_what_bounds_seconds_runs_without_anything_beside_it(tmp_path):
    names, _ = collected(tmp_path, "--collect-only", "--alone", text=TESTS.replace("x [[2]", "x [2]"))
    assert names == ["test_bounds_seconds"]
    _, done = collected(tmp_path, "-n", "1", text=TESTS.replace("x [[2]", "x [2]"))
    assert "5 passed" in done.stdout, done.stdout + done.stderr


def test_tests_that_run_alone_are_where_they_are_run():
    """The parts run `pytest --alone` in tests/launcher. Elsewhere -n leaves such a test out, and nothing ever runs it."""
    known = {"tests/conftest.py", "tests/parts.py", "tests/repository/test_marks.py"}
    users = {str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/*.py") if "nothing_beside" in path.read_text()}
    assert [path for path in sorted(users - known) if not path.startswith("tests/launcher/")] == []
