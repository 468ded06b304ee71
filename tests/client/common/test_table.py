"""Tables of the client: whole in a pipe, and never wider than a terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from algorun_client.common.table import LEAST_CUT, fitted, without_middle
from algorun_client.local.job_folder import JobFolder
from algorun_client.local.job_record import LocalJobRecord
from algorun_client.request.model import Kind
from tests.conftest import clean_environ
from tests.terminal import on_terminal

JOB = "digits-experiments-train-lr-0-001-batch-64-0012-9f3c21"
HEADS = ("job", "status", "took")
ROWS = (("vision-train-0003-a1b2c3", "Completed", "43 min 12 s"), (JOB, "InProgress", ""))


def test_a_table_that_fits_and_one_in_a_pipe_are_whole():
    head, lines = fitted(HEADS, ROWS, 0, None)
    assert (head, lines) == fitted(HEADS, ROWS, 0, 80)
    assert lines[1] == f"{JOB}  InProgress"
    assert [line.index("Completed") for line in lines[:1]] == [head.index("status")] == [lines[1].index("InProgress")]


def test_a_name_loses_its_middle_where_the_terminal_is_too_narrow():
    head, lines = fitted(HEADS, ROWS, 0, 60)
    assert head.split() == list(HEADS)
    assert lines == [
        "vision-train-0003-a1b2c3             Completed   43 min 12 s",
        "digits-experiment…ch-64-0012-9f3c21  InProgress",
    ]


def test_rows_become_lines_of_pairs_where_that_is_not_enough():
    assert fitted(HEADS, ROWS, 0, 44) == (
        "",
        [
            "job vision-train-0003-a1b2c3",
            "  status Completed  took 43 min 12 s",
            "job digits-experiment…batch-64-0012-9f3c21",
            "  status InProgress",
        ],
    )


@given(
    st.lists(st.tuples(*[st.text("abc d漢é", max_size=70)] * 4), max_size=4),
    st.integers(20, 120),
    st.integers(0, 3),
)
def test_no_line_is_wider_than_the_terminal_and_none_is_cut_without_one(rows, width, cut):
    heads = ("one", "two", "three", "four")
    head, lines = fitted(heads, rows, cut, width)
    assert all(cell_len(line) <= width for line in (head, *lines))
    _, whole = fitted(heads, rows, cut, None)
    assert all(cell.rstrip() in line for row, line in zip(rows, whole, strict=True) for cell in row)


def test_a_cut_text_keeps_both_ends():
    assert without_middle(JOB, LEAST_CUT) == "digits-exper…0012-9f3c21"
    assert without_middle("漢字漢字漢字", 7) == "漢…字"
    assert without_middle("short", 5) == "short"


@pytest.fixture
def root(tmp_path) -> Path:
    """Two jobs of this machine."""
    for number, job in enumerate(("vision-train-0003-a1b2c3", JOB)):
        record = LocalJobRecord.new(1.8e9 + number).moved("Training", 1.8e9 + 2).finished("Completed", 1.8e9 + 2592)
        request = {"TrainingJobName": job, "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2}}
        (tmp_path / "root" / "jobs" / "training").mkdir(parents=True, exist_ok=True)
        JobFolder.of(tmp_path / "root", Kind.TRAINING, job).create(record, {"request.json": request})
    return tmp_path / "root"


@pytest.mark.parametrize(
    ("words", "columns", "lines"), [(("ls",), 80, 3), (("ls", "--cost"), 80, 4), (("ls", "--cost"), 110, 3)]
)
def test_the_list_of_jobs_fits_the_terminal_and_is_whole_in_a_pipe(root, tmp_path, words, columns, lines):
    argv = (sys.executable, "-m", "algorun", *words, "--where", "local")
    environ = clean_environ(ALGORUN_LOCAL_ROOT=str(root))
    shown = on_terminal(argv, columns, environ, tmp_path)
    assert shown.code == 0
    assert max(map(len, shown.lines)) <= columns
    assert len(shown.lines) == lines
    assert all(any(end in line for line in shown.lines) for end in ("0012-9f3c21 ", "0003-a1b2c3 "))
    piped = subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert JOB in piped
    assert not {"…", "\x1b"} & set(piped)
