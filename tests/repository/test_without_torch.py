"""`make test PART=light` runs every test but those of a table, which has each folder and names what exists."""

from __future__ import annotations

import ast

import pytest

from tests import without_torch
from tests.conftest import ROOT
from tests.without_torch import FOLDERS, LEFT_OUT, NEED_TORCH

TESTS = ROOT / "tests"


def test_each_folder_with_tests_has_its_place():
    folders = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")}
    assert folders <= {*FOLDERS, *LEFT_OUT}
    assert not set(FOLDERS) & set(LEFT_OUT)
    assert all((TESTS / folder).is_dir() for folder in (*FOLDERS, *LEFT_OUT))


@pytest.mark.parametrize("row", NEED_TORCH)
def test_each_row_names_a_test_of_those_folders(row):
    file, _, test = row.partition("::")
    assert file.partition("/")[0] in FOLDERS
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert not test or test.partition("[")[0].rstrip("*") in there


def test_files_that_import_torch_at_once_have_a_row():
    """Without torch they cannot even be collected."""
    for folder in FOLDERS:
        for path in (TESTS / folder).rglob("test_*.py"):
            imported = {
                name.partition(".")[0]
                for node in ast.parse(path.read_text(encoding="utf-8")).body
                for name in (
                    [each.name for each in node.names]
                    if isinstance(node, ast.Import)
                    else [node.module or ""]
                    if isinstance(node, ast.ImportFrom)
                    else []
                )
            }
            if imported & {"torch", "numpy"}:
                assert without_torch.place(path) in NEED_TORCH


def test_ci_runs_it_on_debian_13():
    assert "NEWCOMER_BASE=algorun-base:trixie .ci/newcomer.sh 'test PART=light'" in (ROOT / ".ci" / "run").read_text()
