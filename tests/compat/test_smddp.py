"""Scripts for AWS's closed data parallel library run on open parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ENGINES, algorun

PROGRAM = Path(__file__).parent / "programs" / "smddp.py"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_backend_smddp_reduces_gathers_and_carries_ddp(engine, tmp_path, nothing_left):
    done = algorun("simulate", "-j", "2x2", "--engine", engine, str(PROGRAM), cwd=tmp_path, ALGORUN_TEST=nothing_left)
    assert done.code == 0, done.text
    said = "smddp sum 10.0 parts [0.0, 1.0, 2.0, 3.0] grad [3.0, 3.0, 3.0]"  # the mean of 2 x rank
    for rank, host in enumerate(["algo-1", "algo-1", "algo-2", "algo-2"]):
        assert f"[{rank} {host}] {said}" in done.out


def test_the_first_interface_of_the_library(tmp_path, nothing_left):
    program = PROGRAM.with_name("smddp_first.py")
    done = algorun("simulate", "-j", "2x2", str(program), cwd=tmp_path, ALGORUN_TEST=nothing_left)
    assert done.code == 0, done.text
    for rank, host in enumerate(["algo-1", "algo-1", "algo-2", "algo-2"]):
        assert f"[{rank} {host}] local {rank % 2} of 4 sum 10.0 grad [3.0, 3.0, 3.0]" in done.out
