"""smdistributed.modelparallel.torch: join() and communication hooks of DistributedModel."""

from __future__ import annotations

import pytest

from tests.compat.smp_runs import run, started

LAYOUTS = [(2, 1), (4, 2)]


# `make test` keeps each schedule, each kind of model and each kind of layout, but not all of their combinations.
@pytest.mark.slow(but=["4-2-join"])
@pytest.mark.parametrize("mean", ["join", "left"])
@pytest.mark.parametrize(("ranks", "partitions"), LAYOUTS)
def test_replicas_may_have_different_numbers_of_batches(ranks, partitions, mean, tmp_path):
    """The mean is over all of them, or over those that are left."""
    rows = run(tmp_path, "smp_replicas.py", mean, ranks=ranks, parameters={"partitions": partitions, "microbatches": 1})
    for row in rows:
        assert row["difference"] < 1e-6
        assert row["buffers"] < 1e-6
        if mean == "left":
            assert row["said"] == [
                "UserError: register_comm_hook: overlapping_allreduce is False; allowed: True; fix: leave it out"
            ]


@pytest.mark.slow(but=["2-1"])
@pytest.mark.parametrize(("ranks", "partitions"), LAYOUTS)
def test_a_hook_reduces_the_gradients(ranks, partitions, tmp_path):
    rows = run(
        tmp_path, "smp_replicas.py", "hook", ranks=ranks, parameters={"partitions": partitions, "microbatches": 1}
    )
    for row in rows:
        assert row["difference"] < 1e-6
        assert len(row["seen"]) == 4  # one bucket in each of four steps
        assert all(each[:2] == [0, True] for each in row["seen"])
        assert row["said"] == [
            "UserError: register_comm_hook: there is one already; allowed: one; fix: register a hook that does both"
        ]


def test_an_early_end_can_be_an_error_on_all_ranks(tmp_path):
    parameters = {"partitions": 1, "microbatches": 1, "ddp": True}
    job = started(tmp_path, "smp_replicas.py", "throw", parameters=parameters)
    assert job.codes() == [1, 1]
    for rank in range(2):
        assert "join: 1 of 2 replicas have no batch left" in job.text(rank)
