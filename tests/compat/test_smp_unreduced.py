"""smdistributed.modelparallel.torch with one partition: loss.backward(), and passes outside of @smp.step functions."""

from __future__ import annotations

import pytest

from tests.compat.smp_runs import run, started

ONE = {"partitions": 1, "microbatches": 2, "ddp": True}
PHASES = [
    "normal",
    "normal, scaled",
    "outside",
    "outside, model.backward",
    "in a step",
    "two ways in a step",
    "normal, later",
    "accumulated",
    "after a step",
    "on one replica",
    "clipped",
    "smp's scaler",
    "torch's scaler",
    "closure",
    "nothing",
    "join, a mean of those left",
    "join, in a step, of those left",
    "join",
    "join, in a step",
]
BY_STEPS = {
    *("normal", "normal, scaled", "normal, later", "two ways in a step", "after a step"),
    *("join, in a step", "join, in a step, of those left"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return run(tmp_path_factory.mktemp("unreduced"), "smp_unreduced.py", parameters=ONE)


@pytest.mark.parametrize("phase", PHASES)
def test_gradients_are_reduced_before_they_are_used(phase, found):
    for row in found:
        assert row[phase]["apart"] == 0
        assert row[phase]["difference"] < 1e-6
        if phase.startswith("normal"):  # one in each of four steps; none in optimizer.step, a scaler or clipping
            assert row[phase]["reductions"] == 4
        if phase not in BY_STEPS:  # at the end of a step, what no replica uses has a gradient of zero, and decays
            assert row[phase]["unused"] == 0


def test_every_phase_is_looked_at(found):
    assert list(found[0]) == PHASES


def test_with_several_partitions_loss_backward_is_one_error_on_all_ranks(tmp_path):
    run = started(tmp_path, "smp_faults.py", "loss.backward", parameters={"partitions": 2, "microbatches": 2})
    assert run.codes() == [1, 1], run.text(0) + run.text(1)
    for rank in range(2):
        assert "UserError: train_step: a backward pass in an @smp.step function by other means" in run.text(rank)
        assert "fix: it in the place of loss.backward()" in run.text(rank)
