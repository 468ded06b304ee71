"""What waits for `make test-all` is a table: it names tests that exist, and leaves none of their cases out by mistake."""

from __future__ import annotations

import ast
from types import SimpleNamespace

import pytest

from tests import combinations, thorough, turns
from tests.conftest import ROOT

TESTS = ROOT / "tests"


NAMED = {*thorough.TABLE, *combinations.TABLE, *combinations.CONTAINERS_TABLE}


@pytest.mark.parametrize("file", sorted({test.partition("::")[0] for test in NAMED} | set(turns.SLOWEST)))
def test_the_tables_name_tests_that_there_are(file):
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    named = {test.partition("::")[2] for test in NAMED if test.startswith(f"{file}::")}
    assert named <= there


def test_no_test_is_in_two_rows():
    assert sum(len(later.kept) for later in thorough.LATER) == len(thorough.TABLE)
    assert sum(len(later.kept) for later in combinations.COMBINATIONS) == len(combinations.TABLE)


def test_ci_leaves_only_cases_that_wait_for_all_tests():
    assert combinations.TABLE.keys() <= thorough.TABLE.keys()
    assert not combinations.CONTAINERS_TABLE.keys() & thorough.TABLE.keys(), "`make test` has no containers"
    both = {test: set(ids) & set(thorough.TABLE[test]) for test, ids in combinations.TABLE.items()}
    assert not any(both.values()), "`make test` keeps these already"


def collected(test: str, case: str) -> SimpleNamespace:
    return SimpleNamespace(nodeid=f"tests/{test}[{case}]", callspec=SimpleNamespace(id=case))


def test_cases_that_are_kept_run_every_day_and_the_others_wait():
    table = {"a/test_b.py::test_c": ("native-*", "x [2]")}
    cases = ("native-2", "native", "x [2]", "x 2", "torchrun-2")
    assert [thorough.waits(collected("a/test_b.py::test_c", case), table) for case in cases] == [
        False,
        True,
        False,
        True,
        True,
    ]
    assert not thorough.waits(collected("a/test_b.py::test_d", "torchrun-2"), table)
    assert thorough.stale([collected("a/test_b.py::test_c", "native-2")], table) == ["a/test_b.py::test_c[x [2]]"]
    assert thorough.stale([collected("a/test_b.py::test_d", "native-2")], table) == []
