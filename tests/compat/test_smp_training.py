"""smdistributed.modelparallel.torch: optimizer, scaler and clipping."""

from __future__ import annotations

import pytest

from tests.compat.smp_runs import run

PROGRAM = "smp_training.py"


def said(folder, *args, **options):
    folder.mkdir(exist_ok=True)
    return run(folder, PROGRAM, *args, **options)


@pytest.mark.slow(but=["2-*"])
@pytest.mark.parametrize(("ranks", "partitions"), [(2, 2), (2, 1), (4, 2)])
def test_the_optimizer_is_torchs_own_and_its_state_that_of_the_whole_model(ranks, partitions, tmp_path):
    rows = said(tmp_path, "optimizer", ranks=ranks, parameters={"partitions": partitions})
    assert sorted({number for row in rows for number in row["local"]}) == list(range(6))
    for row in rows:
        assert row["kinds"] == [True, True]
        assert (row["again"], row["copied"], row["state before"], row["partial"]) == (True, True, {}, True)
        assert row["same"] == [True, True, True]
        assert len(row["local"]) < 6 or partitions == 1
        assert row["back"] == [True, True]
        assert row["kept local"] == [row["local"]] * 2
        assert row["rate"] == 0.005
        assert row["scaling"] == "DistributedAdamW"
        assert row["unknown"].startswith("UserError: smp.DistributedOptimizer: scale_widow; allowed: ")
        assert row["no optimizer"].startswith("UserError: smp.DistributedOptimizer: DistributedModel; allowed: ")
        assert row["other"] == (
            "UserError: optimizer.load_state_dict: state of [2] parameters in its groups; allowed: [6]; fix: build it "
            "over model.parameters() on both sides, and give its groups the same order"
        )


def test_state_that_comes_before_the_partition_waits_for_it(tmp_path):
    for row in said(tmp_path, "before"):
        assert row.pop("outside").startswith("UserError: model.backward is called outside of an @smp.step function; ")
        assert row == {"rate": 0.5, "state": 0, "same": [True, True, True], "on the cpu": True}


def test_an_optimizer_over_local_parameters_has_no_whole_state(tmp_path):
    for row in said(tmp_path, "local"):
        assert row["back"]
        assert row["whole"].startswith(
            "UserError: optimizer.state_dict: the optimizer was built over local_parameters()"
        )


def test_all_ranks_skip_a_step_when_one_has_an_infinite_gradient(tmp_path):
    for row in said(tmp_path, "scaler"):
        assert row["steps"] == [[pytest.approx(0.01), 4.0, 8.0], [0.0, 8.0, 4.0]]
        assert (row["after"], row["off"]) == (8.0, False)


@pytest.mark.slow(but=["2-*"])
@pytest.mark.parametrize(("ranks", "partitions"), [(2, 2), (2, 1), (4, 2)])
def test_gradients_are_clipped_by_the_norm_of_all_stages(ranks, partitions, tmp_path):
    for row in said(tmp_path, "clip", ranks=ranks, parameters={"partitions": partitions}):
        for ratio, same in row["clipped"]:
            assert ratio == pytest.approx(1, abs=1e-5)
            assert same
        assert row["own"] == pytest.approx(0, abs=1e-6)
        assert row["refused"].startswith("RuntimeError: ")
        if partitions == 2:
            assert row["refused"].startswith(
                "RuntimeError: clip_grad_norm_: the norm of order 2.0 over all stages is nan"
            )
