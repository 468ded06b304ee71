"""smdistributed.modelparallel.torch: sharded data parallelism."""

from __future__ import annotations

import pytest

from .smp_runs import run

PROGRAM = "smp_sharded.py"


def given(degree, **others):
    return {"partitions": 1, "microbatches": 2, "sharded_data_parallel_degree": degree, **others}


# `make test` has two shares, and a checkpoint that four shares read.
@pytest.mark.slow(but=["2"])
@pytest.mark.parametrize(
    ("ranks", "parameters", "clip"),
    [
        (2, given(2), 1.0),
        (4, given(4, microbatches=1, sdp_gradient_clipping=0.05), 0.05),
        (4, given(2, sdp_gradient_clipping=0, sdp_hierarchical_allgather=False), 0.0),
        (2, {"partitions": 1, "microbatches": 1, "shard_optimizer_state": True}, 0.0),
    ],
    ids=["2", "4", "2 x 2", "state"],
)
def test_training_in_shares_equals_training_of_the_whole(tmp_path, ranks, parameters, clip):
    for found in run(tmp_path, PROGRAM, "parity", str(clip), ranks=ranks, parameters=parameters):
        for name in ("weights", "losses", "norm", "moments", "evaluation"):
            assert found[name] < 1e-10, (name, found)
        own, whole = found["bytes"]
        assert own < 0.75 * whole
        assert found["shapes"]
        assert found["flat"]
        assert "allowed: dimension 0 and the range of one parameter" in found["bad narrow"]


@pytest.mark.slow
def test_a_script_s_own_clipping_is_by_the_norm_of_all_shares(tmp_path):
    for found in run(tmp_path, PROGRAM, "clipping", parameters=given(2, microbatches=1)):
        assert max(abs(norm) for norm, _ in found) < 1e-10
        assert max(gradients for _, gradients in found) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_half_precision_has_master_weights(tmp_path, kind):
    parameters = given(2, microbatches=1) | {kind: True}
    for found in run(tmp_path, PROGRAM, "half", kind, parameters=parameters):
        assert found["master"] == found["moments"] == ["torch.float32"]
        assert found["inside"] == {"bf16": "torch.bfloat16", "fp16": "torch.float16"}[kind]
        falls = 0.5 if kind == "fp16" else 1.0  # after a gradient that is infinite; a checkpoint brings the scale back
        assert found["scales"] == [1.0, falls, 1.0] * 2
        assert found["overflow"] == (kind == "fp16")
        assert found["losses"][-1] < 0.5 * found["losses"][0]


@pytest.mark.slow
def test_what_has_no_meaning_with_shares_is_refused(tmp_path):
    for rank, found in enumerate(run(tmp_path, PROGRAM, "refusals", parameters=given(2))):
        assert found == {
            "closure": "UserError: optimizer.step(closure); allowed: without a closure, with sharded data parallelism; fix: "
            "compute the loss before the step",
            "hook": "UserError: register_comm_hook: gradients are sharded; allowed: without sharded data parallelism; fix: "
            "leave it out",
            "join": "UserError: model.join: each rank holds shares of the others' weights; allowed: without sharded data "
            "parallelism; fix: equally many batches on all ranks",
            "module": "UserError: model.module.state_dict(): the module holds this rank's shares of the weights only; fix: "
            "model.state_dict() on all ranks, or model.local_state_dict()",
            "cpu": "UserError: model.cpu: each rank holds shares of the weights; allowed: without sharded data parallelism; "
            "fix: model.state_dict() on all ranks",
            "part": f"UserError: model.load_state_dict: a part that is not share {rank} of 2; allowed: this rank's own "
            "local_state_dict(), or a whole state dict; fix: smp.resume_from_checkpoint, which puts parts together",
        }


@pytest.mark.slow(but=["2-4"])
@pytest.mark.parametrize(
    ("partial", "before", "after", "ranks"),
    [
        ("1", given(2), given(4, microbatches=1), 4),
        ("1", given(2), {"partitions": 1, "microbatches": 1}, 2),
        ("1", {"partitions": 1, "microbatches": 1}, given(2), 2),
        ("1", {"partitions": 2}, given(2), 2),
        ("", given(2), given(4), 4),
    ],
    ids=["2-4", "2-whole", "whole-2", "pipeline-2", "full-4"],
)
def test_a_checkpoint_goes_into_any_degree(tmp_path, partial, before, after, ranks):
    """Training goes on as if it had not stopped."""
    folder = str(tmp_path / "checkpoints")
    run(tmp_path / "a", PROGRAM, "save", folder, "3", partial, parameters=before | {"sdp_gradient_clipping": 0})
    after = after | {"sdp_gradient_clipping": 0}
    for found in run(tmp_path / "b", PROGRAM, "resume", folder, "3", partial, ranks=ranks, parameters=after):
        assert max(found["at once"], found["after"]) < 1e-10
