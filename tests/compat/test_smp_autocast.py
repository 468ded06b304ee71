"""Autocast in scripts for smdistributed.modelparallel: training and evaluation each under its own."""

from __future__ import annotations

import pytest

from tests.compat.smp_runs import run

BOTH = {"partitions": 2, "microbatches": 2}


# `make test` runs one partition and two pipelines, below.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("trained", "evaluated", "words"),
    [
        ("bfloat16", "float32", ()),
        ("bfloat16", "bfloat16", ()),
        ("float32", "bfloat16", ("first",)),
        ("bfloat16", "float32", ("mixed",)),
        ("float32", "bfloat16", ("mixed", "first")),
    ],
)
def test_training_and_evaluation_compute_under_their_own_autocast(trained, evaluated, words, tmp_path):
    """As the unsplit model does; in the other type outputs would differ by 5e-3, parameters by 4e-4."""
    for row in run(tmp_path, "smp_autocast.py", trained, evaluated, *words):
        assert row["evaluation"] < 1e-6
        assert row["parameters"] < 1e-7


@pytest.mark.slow
def test_one_partition_and_two_pipelines_do_so_too(tmp_path):
    for name, ranks, parameters in (("one", 1, {"partitions": 1}), ("two", 4, {"ddp": True})):
        for row in run(
            tmp_path / name, "smp_autocast.py", "bfloat16", "float32", ranks=ranks, parameters=BOTH | parameters
        ):
            assert row["evaluation"] < 1e-6
            assert row["parameters"] < 1e-7
