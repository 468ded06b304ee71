"""The parts that `make test` and `make test-all` run: scripts that name what exists, and pages that show them as they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests import parts
from tests.conftest import ROOT
from tests.parts import MAIN, PARTS

BY_HAND = {"ray", "frameworks", "fuzz", "gpu", "image", "debian13"}
SCRIPTS = {(name, whole): parts.script(name, whole) for name, part in PARTS.items() for whole in (True, False) if whole or part.script}  # fmt: skip


def asked(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "tests.parts", *words]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("name", "whole"), SCRIPTS)
def test_a_script_is_bash_and_names_files_that_exist(name, whole):
    text = SCRIPTS[name, whole]
    subprocess.run(["bash", "-n", "-c", text], check=True)
    named = set(re.findall(r"\b(?:tests|docs|\.ci)/[\w./-]+\w", text))
    assert [path for path in named if not (ROOT / path).exists() and not list(ROOT.glob(f"{path}*.py"))] == []


def test_the_readme_of_the_tests_has_the_table_of_parts():
    assert "\n".join(parts.table()) in (ROOT / "tests" / "README.md").read_text()


def test_ci_runs_every_part_but_those_that_a_person_runs():
    text = (ROOT / ".ci" / "run").read_text()
    named = {word for words in re.findall(r"PART='?([\w -]+)'?", text) for word in words.split()}
    assert named >= {*PARTS} - BY_HAND - {MAIN}
    assert re.search(r"newcomer\.sh demo .* test$", text, re.MULTILINE)


def test_make_has_few_targets_and_help_shows_each_of_them_and_the_parts():
    shown = subprocess.run(["make", "--silent", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    targets = phony[1].split()
    assert len(targets) <= 12
    assert all(re.search(rf"^ *{name} ", shown, re.MULTILINE) for name in (*targets, *PARTS))


@pytest.mark.parametrize(
    ("words", "says"),
    [(("nope",), "PART: nope; allowed: main, slow, "), (("fuzz",), "fix: make test-all PART=fuzz")],
)
def test_what_is_no_part_is_one_error(words, says):
    done = asked(*words)
    assert done.returncode != 0
    assert says in done.stderr


@pytest.mark.parametrize(
    ("test", "code"),
    [
        ("import pathlib\ndef test():\n    seen = pathlib.Path('seen')\n    assert seen.exists() or seen.touch()", 0),
        ("def test():\n    assert False", 1),
        ("def test(:", 2),
    ],
    ids=["once", "always", "not read"],
)
def test_what_failed_runs_once_more_and_decides(tmp_path, test, code):
    (tmp_path / "test_it.py").write_text(test)
    run = f"{sys.executable} -m pytest -q"
    first = f"status=0\n{run} || status=$((status | $?))\n"
    again = parts.AGAIN.format(pytest=run, marks="", rest="")
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # 2 s each
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", first + again],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    assert ("once more" in done.stdout) == (code < 2)
    assert "1 failed" in done.stdout or code > 1  # the first report stands


def collected(*options: str) -> subprocess.CompletedProcess[str]:
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/client/common/test_table.py",
        *options,
    ]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)


def test_shares_hold_each_test_once():
    shares = [(), ("--share", "1/3"), ("--share", "2/3"), ("--share", "3/3")]
    whole, *parts = [[line for line in collected(*share).stdout.splitlines() if "::" in line] for share in shares]
    assert all(parts)
    assert sorted(name for part in parts for name in part) == sorted(whole)
    for wrong in ("4/3", "4"):
        assert f"--share {wrong}: K/N is from 1/N to N/N" in collected("--share", wrong).stderr
