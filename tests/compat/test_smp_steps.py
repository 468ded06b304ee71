"""Scripts for smdistributed.modelparallel: parameters equal to those of the unsplit model, and faults named on all ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from tests.train.training_runs import ROOT, Ranks

PROGRAMS = Path(__file__).parent / "programs"
EXACT = 1e-6  # of parameters after four steps of Adam; what was seen is up to 6e-8


def ranks(base: Path, hosts: int, slots: int, program: str, parameters: dict, *args: str, **environ: str) -> Ranks:
    return Ranks(
        base, hosts, slots, list(args), program=str(PROGRAMS / program), SM_HP_MP_PARAMETERS=json.dumps(parameters),
        PYTHONPATH=f"{ROOT}:{ROOT / 'compat'}", **environ,
    )  # fmt: skip


CASES = [
    ("1", 1, 1, {"partitions": 1, "microbatches": 2}, ()),
    ("1-ddp", 1, 2, {"partitions": 1, "microbatches": 2, "ddp": True}, ()),
    ("1-ddp-every-2", 1, 2, {"partitions": 1, "microbatches": 2, "ddp": True}, ("--every", "2")),
    ("1-checkpointing", 1, 1, {"partitions": 1, "microbatches": 2}, ("--checkpointing",)),
    ("2", 1, 2, {"partitions": 2, "microbatches": 4}, ()),
    ("2-one-microbatch", 1, 2, {"partitions": 2}, ()),
    ("2-checkpointing", 1, 2, {"partitions": 2, "microbatches": 2}, ("--checkpointing",)),
    ("2-evaluated-first", 1, 2, {"partitions": 2, "microbatches": 2}, ("--evaluated-first",)),
    ("2-sum", 1, 2, {"partitions": 2, "microbatches": 2}, ("--no-average", "--model", "named")),
    ("2-manual", 1, 2, {"partitions": 2, "microbatches": 2, "auto_partition": False, "default_partition": 0},
     ("--model", "grouped")),
    ("4", 2, 2, {"partitions": 4, "microbatches": 4}, ()),
    ("2x2-cluster", 2, 2, {"partitions": 2, "microbatches": 2, "ddp": True}, ()),
    ("2x2-spread-simple", 2, 2, {"partitions": 2, "microbatches": 4, "ddp": True, "placement_strategy": "spread",
                                 "pipeline": "simple"}, ("--model", "named")),
    ("2x2-every-2", 2, 2, {"partitions": 2, "microbatches": 2, "ddp": True}, ("--every", "2", "--model", "named")),
]  # fmt: skip


@pytest.mark.parametrize(("hosts", "slots", "parameters", "args"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_steps_are_those_of_the_unsplit_model(hosts, slots, parameters, args, tmp_path):
    if parameters.get("microbatches", 1) < parameters["partitions"] and torch.__version__.startswith("2.10."):
        pytest.skip("torch 2.10 has no schedule for fewer microbatches than stages")
    run = ranks(tmp_path, hosts, slots, "smp_steps.py", parameters, *args)
    assert run.codes() == [0] * hosts * slots, "\n".join(run.text(rank) for rank in range(hosts * slots))
    result = json.loads((tmp_path / "host0/output/data/result.json").read_text())
    pp = parameters["partitions"]
    for row in result["ranks"]:
        assert row["difference"] < EXACT
        assert row["evaluation"] < 1e-5
        assert row["whole"] < EXACT
        assert row["hooks"] == 1
        assert row["pre"] is (pp == 1)
    by_place = {tuple(row["place"]): row for row in result["ranks"]}
    for dp in range(hosts * slots // pp):
        stages = [by_place[stage, dp] for stage in range(pp)]
        assert len({json.dumps(row["losses"]) for row in stages}) == 1  # step outputs are the same on all ranks
        held = [set(row["local"]) for row in stages]
        assert all(held)
        assert sum(map(len, held)) == len(set.union(*held))
    if "grouped" in args:
        assert {name.split(".")[0] for name in by_place[0, 0]["local"]} == {"first"}
        assert {name.split(".")[0] for name in by_place[1, 0]["local"]} == {"second"}


ONE = {"partitions": 2, "microbatches": 2}
MANUAL = {**ONE, "auto_partition": False, "default_partition": 0}
FAULTS = [
    ("second model", ONE, "a second smp.DistributedModel; allowed: one per script"),
    ("outside", ONE, "the model is called outside of an @smp.step function"),
    ("no call", ONE, "train_step does not call the model"),
    ("two calls", ONE, "calls the model more than once per microbatch"),
    ("two backward", ONE, "calls model.backward more than once"),
    ("not a number", ONE, "model.backward: a tensor of shape [4] without a gradient"),
    ("batch", ONE, "argument 'inputs' has a batch of 7 along axis 0; allowed: multiples of microbatches = 2"),
    ("last batch", ONE, "allowed: [[4, 6] float32], which it was cut for, since its samples are not"),
    ("mean of the batch", ONE, "allowed: [[4, 6] float32], which it was cut for, since its samples are not"),
    ("gap", MANUAL, "smp.partition: 3 of partition 0 is called after 2, which is in partition 1"),
    ("module", ONE, "the module holds the weights of this rank's stages only"),
]


@pytest.mark.parametrize(("what", "parameters", "said"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_fault_is_one_clear_error_on_every_rank(what, parameters, said, tmp_path):
    run = ranks(tmp_path, 1, 2, "smp_faults.py", parameters, what)
    assert run.codes() == [1, 1], run.text(0) + run.text(1)
    for rank in range(2):
        assert said in run.text(rank), run.text(rank)
        assert "came to the end" not in run.text(rank)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"partitions": 3}, "does not divide the job's 2 ranks"),
        ({"partitions": 1}, "partitions = 1 on 2 ranks"),
        ({"partitions": 2, "speed": 1}, "mp_parameters: speed = 1"),
        ({"partitions": 2, "tensor_parallel_degree": 2}, "there is no tensor parallelism here"),
        ({"partitions": 2, "auto_partition": False}, "auto_partition = false"),
    ],
)
def test_wrong_parameters_end_at_init(parameters, said, tmp_path):
    run = ranks(tmp_path, 1, 2, "smp_faults.py", parameters, "none")
    assert run.codes() == [1, 1]
    for rank in range(2):
        assert said in run.text(rank), run.text(rank)


@pytest.mark.parametrize("then", ["train", "end"])
def test_evaluation_on_rank_0_alone_is_an_error_and_no_hang(then, tmp_path):
    """With one partition it works, as it did in AWS's library; with more, the other stages are missing."""
    run = ranks(tmp_path / "two", 1, 2, "smp_faults.py", ONE, "rank 0 evaluates", THEN=then)
    codes = run.codes()
    assert codes[0] == 1, run.text(0)
    assert re.search(r"every (@smp.step function|one) has to be called on all", run.text(0)), run.text(0)
    assert codes[1] == (1 if then == "train" else 0), run.text(1)
    one = ranks(tmp_path / "one", 1, 2, "smp_faults.py", {"partitions": 1, "ddp": True}, "rank 0 evaluates", THEN=then)
    assert one.codes() == [0, 0], one.text(0)


def test_a_whole_state_dict_on_rank_0_alone_is_an_error_and_no_hang(tmp_path):
    run = ranks(tmp_path, 1, 2, "smp_faults.py", ONE, "state on rank 0")
    assert run.codes() == [1, 0], run.text(1)
    assert "a whole state dict: another rank of this pipeline has ended or failed while rank 0" in run.text(0)
