"""horovod.tensorflow and smdistributed.dataparallel.tensorflow on ranks of mpirun and of others, beside one process."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from tests.conftest import needs_mpi

from .conftest import PROGRAMS

pytestmark = [pytest.mark.slow, needs_mpi]
FRAMEWORK = "tensorflow"
PROGRAM = PROGRAMS / "reduce_with_tensorflow.py"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}


def rows(done):
    assert done.code == 0, done.text
    return [json.loads(row) for row in re.findall(r"row (\{.*\})$", done.out, re.M)]


@pytest.mark.parametrize(
    ("engine", "library", "mode", "legacy"),
    [
        ("mpirun", "hvd", "train", "1"),
        ("mpirun", "sdp", "train", "0"),
        ("mpirun", "hvd", "fit", "0"),
        ("mpirun", "sdp", "fit", "1"),
        ("native", "sdp", "train", "1"),
        ("native", "hvd", "fit", "0"),
        ("torchrun", "sdp", "fit", "0"),
    ],
)
def test_two_ranks_train_as_one_process_with_the_whole_batch(engine, library, mode, legacy, run):
    """With Keras 2 (legacy) and 3."""
    jobs = {
        layout: rows(run(engine, layout, PROGRAM, library, mode, TF_USE_LEGACY_KERAS=legacy, **QUIET))
        for layout in ("1x1", "1x2")
    }
    (one,) = jobs["1x1"]
    two = sorted(jobs["1x2"], key=lambda row: row["rank"])
    assert [(row["rank"], row["local"]) for row in two] == [(0, 0), (1, 1)]
    assert two[0]["weights"] == two[1]["weights"]  # to the last bit
    assert two[0]["losses"] == two[1]["losses"]
    assert two[0]["weights"] == pytest.approx(one["weights"], abs=1e-5)
    assert two[0]["losses"] == pytest.approx(one["losses"], abs=1e-5)
    assert np.ptp(one["weights"]) > 0.1


@pytest.mark.parametrize(
    ("engine", "library", "layout"), [("mpirun", "hvd", "2x1"), ("mpirun", "sdp", "1x2"), ("native", "sdp", "2x1")]
)
def test_values_of_all_ranks_come_together(engine, library, layout, run):
    (one,) = rows(run(engine, "1x1", PROGRAM, library, "values", **QUIET))
    assert one["eager"] == one["graph"]
    assert one["eager"] == {
        "mean": [1, 2], "least": [1, 2], "whole": [0, 7], "narrow": [1, 2], "gradient": [2, 4], "last": [1, 2],
        "short": [1],
        "slices": [[1, 1], [0, 0], [0, 0], [0, 0]],
    }  # fmt: skip
    two = rows(run(engine, layout, PROGRAM, library, "values", **QUIET))
    first, second = sorted((row["eager"] for row in two), key=lambda row: row["gradient"])
    assert sorted((row["graph"] for row in two), key=lambda row: row["gradient"]) == [first, second]
    assert (first.pop("gradient"), second.pop("gradient")) == ([4, 8], [8, 16])  # of the sum on both ranks
    assert first == second == {
        "mean": [1.5, 3], "least": [1, 2], "whole": [1, 14], "narrow": [1.5, 3], "last": [2, 4],
        "short": [3],
        "slices": [[0.5, 0.5], [1, 1], [0, 0], [0, 0]],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("library", "fault", "says"),
    [
        ("hvd", "shapes", "rank 0 calls hvd.allreduce, mean of float32[1], rank 1 calls hvd.allreduce, mean of float32[2]"),
        ("sdp", "shapes", "rank 0 calls sdp.allreduce, mean of float32[1], rank 1 calls sdp.allreduce, mean of float32[2]"),
        ("hvd", "integers", "hvd.allreduce: the average of int32; allowed: floating point"),
        ("hvd", "root", "hvd.broadcast: root_rank is 5; allowed: 0 .. 1"),
        ("hvd", "option", "hvd.DistributedGradientTape: backward_passes_per_step = 2; allowed: 1"),
        ("hvd", "name", "hvd.broadcast_global_variables cannot be had: this horovod.tensorflow is algorun-smdistributed's"),
        ("sdp", "name", "sdp.broadcast_global_variables cannot be had"),
        ("hvd", "optimizer", "hvd.DistributedOptimizer: a builtins.object; allowed: an optimizer of Keras"),
        ("sdp", "start", "sdp is not initialised; fix: call sdp.init() first"),
    ],
)  # fmt: skip
def test_a_fault_is_one_error(library, fault, says, run):
    done = run("mpirun", "1x2", PROGRAM, library, fault, **QUIET)
    assert done.code == 1, done.text
    assert "no error" not in done.text
    assert says in done.failure("algo-1"), done.text


def test_ranks_of_other_launchers_in_different_calls_are_one_error(run):
    done = run("native", "1x2", PROGRAM, "sdp", "shapes", **QUIET)
    assert done.code == 1, done.text
    assert "rank 0 calls sdp.allreduce, mean of float32[1], rank 1 calls sdp.allreduce, mean of" in done.failure(
        "algo-1"
    )


def test_one_line_says_whose_horovod_it_is(run):
    done = run("mpirun", "1x2", PROGRAM, "hvd", "values", **QUIET)
    assert len(re.findall(r"algorun: horovod is algorun-smdistributed 0\.\S+ \(", done.text)) == 1


WITH_SMP = """
import horovod.tensorflow as hvd  # before smdistributed, as in AWS's tf2_hvd.py
import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf
hvd.init()
smp.init()
total = hvd.allreduce(tf.constant(smp.rank()), op=hvd.Sum)
print(f"rank {smp.rank()} is {hvd.rank()} of {hvd.size()}, replica {smp.dp_rank()}, sum {int(total)}", flush=True)
"""


def test_in_a_job_of_smp_the_ranks_are_those_with_the_same_partition(run, tmp_path):
    """And Keras is the one that smp needs, without a variable of the user's."""
    (tmp_path / "script.py").write_text(WITH_SMP)
    parameters = json.dumps({"partitions": 2, "microbatches": 2, "horovod": True})
    done = run("mpirun", "1x4", "script.py", SM_HP_MP_PARAMETERS=parameters, **QUIET)
    assert done.code == 0, done.text
    places = dict(re.findall(r"rank (\d) is (.*)$", done.out, re.M))
    assert places == {
        "0": "0 of 2, replica 0, sum 2", "1": "0 of 2, replica 0, sum 4",
        "2": "1 of 2, replica 1, sum 2", "3": "1 of 2, replica 1, sum 4",
    }  # fmt: skip
