"""Scripts for smdistributed.modelparallel as a job of two hosts, under the engines of the launcher."""

from __future__ import annotations

import json

import pytest

from tests.compat.smp_runs import PROGRAMS
from tests.conftest import ROOT, algorun, needs_mpi

ENGINES = ["native", pytest.param("mpirun", marks=needs_mpi)]
LAYOUT = {"partitions": 2, "microbatches": 2, "ddp": True}


def simulated(engine: str, program: str, *args: str, cwd, token, layout: str = "2x2", **parameters):
    return algorun(
        "simulate", "-j", layout, "--engine", engine, str(PROGRAMS / program), *args, cwd=cwd, ALGORUN_TEST=token,
        SM_HP_MP_PARAMETERS=json.dumps(LAYOUT | parameters), PYTHONPATH=str(ROOT),  # programs import tests' models
    )  # fmt: skip


# What the supervisor does is the same under all engines.
@pytest.mark.slow
def test_an_evaluation_on_rank_0_alone_ends_the_job_with_its_reason(tmp_path, nothing_left):
    done = simulated("native", "smp_faults.py", "rank 0 evaluates", cwd=tmp_path, token=nothing_left)
    assert done.code == 1, done.text
    (line,) = [line for line in done.text.splitlines() if line.startswith("algorun: exception: ")]
    assert line.startswith("algorun: exception: rank 0 on algo-1, exit 1, attempt 1, ")
    assert "test_step: another rank of this pipeline has ended or failed while rank 0 calls it" in line
    assert "fix: call it on every rank, not on rank 0 alone" in line


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_manual_partition_trains_as_the_unsplit_model(engine, tmp_path, nothing_left):
    done = simulated(
        engine, "smp_steps.py", "--model", "grouped", cwd=tmp_path, token=nothing_left, layout="2x1",
        auto_partition=False, default_partition=0,
    )  # fmt: skip
    assert done.code == 0, done.text
    (file,) = tmp_path.rglob("algo-1/output/data/smp.json")
    rows = json.loads(file.read_text())["ranks"]
    assert [row["place"] for row in rows] == [[0, 0], [1, 0]]
    for row in rows:
        assert max(row["difference"], row["whole"]) < 1e-6
