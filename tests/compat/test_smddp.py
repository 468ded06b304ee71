"""Scripts for AWS's closed data parallel library run on open parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import algorun, needs_mpi

PROGRAM = Path(__file__).parent / "programs" / "smddp.py"


FOUR = "smddp sum 10.0 parts [0.0, 1.0, 2.0, 3.0] grad [3.0, 3.0, 3.0]"  # the mean of 2 x rank
TWO = "smddp sum 3.0 parts [0.0, 1.0] grad [1.0, 1.0, 1.0]"


@pytest.mark.parametrize(
    ("engine", "slots", "said"),
    [("native", 2, FOUR), ("torchrun", 1, TWO), pytest.param("mpirun", 1, TWO, marks=needs_mpi)],
)
def test_the_backend_smddp_reduces_gathers_and_carries_ddp(engine, slots, said, tmp_path, nothing_left):
    options = ["-j", f"2x{slots}", "--engine", engine]
    done = algorun("simulate", *options, str(PROGRAM), cwd=tmp_path, ALGORUN_TEST=nothing_left)
    assert done.code == 0, done.text
    for rank, host in enumerate(["algo-1"] * slots + ["algo-2"] * slots):
        assert f"[{rank} {host}] {said}" in done.out


def test_the_first_interface_of_the_library(tmp_path, nothing_left):
    program = PROGRAM.with_name("smddp_first.py")
    done = algorun("simulate", "-j", "2x2", str(program), cwd=tmp_path, ALGORUN_TEST=nothing_left)
    assert done.code == 0, done.text
    for rank, host in enumerate(["algo-1", "algo-1", "algo-2", "algo-2"]):
        assert f"[{rank} {host}] local {rank % 2} of 4 sum 10.0 grad [3.0, 3.0, 3.0]" in done.out
