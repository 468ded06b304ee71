"""Scripts for smdistributed.modelparallel: parameters equal to those of the unsplit model, and faults named on all ranks."""

from __future__ import annotations

import json

import pytest
import torch

from algorun_train.ranks.packing import Packing, cannot_be_sent
from smdistributed.modelparallel.core.staged_step import packed_batch
from tests.compat.smp_runs import started
from tests.train.parallel.model_zoo import library

EXACT = 2e-7  # of parameters after four steps of Adam, about 1; what was seen is 0, with replicas up to 6e-8


CASES = [
    ("1", 1, 1, {"partitions": 1, "microbatches": 2}, ()),
    ("1-ddp", 1, 2, {"partitions": 1, "microbatches": 2, "ddp": True}, ()),
    ("1-checkpointing", 1, 1, {"partitions": 1, "microbatches": 2}, ("--checkpointing",)),
    ("2", 1, 2, {"partitions": 2, "microbatches": 4}, ()),
    ("2-one-microbatch", 1, 2, {"partitions": 2}, ()),
    ("2-checkpointing", 1, 2, {"partitions": 2, "microbatches": 2}, ("--checkpointing",)),
    ("2-evaluated-first", 1, 2, {"partitions": 2, "microbatches": 2}, ("--evaluated-first",)),
    ("2-sum", 1, 2, {"partitions": 2, "microbatches": 2}, ("--no-average", "--model", "named")),
    ("2-manual", 1, 2, {"partitions": 2, "microbatches": 2, "auto_partition": False, "default_partition": 0},
     ("--model", "grouped")),
    ("4", 2, 2, {"partitions": 4, "microbatches": 4}, ()),
    ("2x2-spread-simple", 2, 2, {"partitions": 2, "microbatches": 4, "ddp": True, "placement_strategy": "spread",
                                 "pipeline": "simple"}, ("--model", "named")),
    ("2-linformer", 1, 2, {"partitions": 2, "microbatches": 2}, ("--model", "linformer")),
    ("2x2-every-2", 2, 2, {"partitions": 2, "microbatches": 2, "ddp": True}, ("--every", "2", "--model", "named")),
]  # fmt: skip


# `make test` keeps each schedule, each kind of model and each kind of layout, but not all of their combinations.
@pytest.mark.slow(but=["2-manual", "2-checkpointing", "2x2-every-2"])
@pytest.mark.parametrize(("hosts", "slots", "parameters", "args"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_steps_are_those_of_the_unsplit_model(hosts, slots, parameters, args, tmp_path):
    if "linformer" in args:
        for name in ("linformer", "vit_pytorch"):
            library(name)  # or the test is skipped
    run = started(tmp_path, "smp_steps.py", *args, hosts=hosts, slots=slots, parameters=parameters)
    assert run.codes() == [0] * hosts * slots, "\n".join(run.text(rank) for rank in range(hosts * slots))
    result = json.loads((tmp_path / "host0/output/data/smp.json").read_text())
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
    if "--checkpointing" in args:  # twice for each of two microbatches, in whichever stage it lies
        passes = [row["passes"] for row in result["ranks"]]
        assert {width: sum(counts.get(width, 0) for counts in passes) for width in ("16", "12", "10")} == {
            "16": 4,
            "12": 4,
            "10": 4,
        }
    if "grouped" in args:
        assert {name.split(".")[0] for name in by_place[0, 0]["local"]} == {"first"}
        assert {name.split(".")[0] for name in by_place[1, 0]["local"]} == {"second"}
        assert by_place[0, 0]["modules"] == ["", "first", "first.0"]
        assert by_place[1, 0]["modules"] == ["", "second", "second.0", "second.2"]
        assert "smp.partition" not in run.text(0)


OUT_OF_ORDER = [
    ("returning", 2, (), [{"first"}, {"second", "third"}],
     "which this placement does not follow; moved: third (from partition 0 to 1); results are the same"),
    ("returning", 2, ("--evaluated-first",), [{"first"}, {"second", "third"}], "moved: third (from partition 0 to 1);"),
    ("nested", 3, (), [{"child0", "child1"}, {"child2"}, {"child3"}],
     "; pp_rank 0 .. 2 have partitions 2, 1, 0; moved: child0 (from partition 1 to 2); results are the same"),
]  # fmt: skip


@pytest.mark.slow(but=["nested-*"])
@pytest.mark.parametrize(("model", "pp", "args", "held", "said"), OUT_OF_ORDER)
def test_a_placement_in_another_order_is_moved_as_little_as_can_be(model, pp, args, held, said, tmp_path):
    """Parameters are those of the unsplit model; one warning says what has moved."""
    parameters = {"partitions": pp, "microbatches": 4, "auto_partition": False, "default_partition": 0}
    run = started(tmp_path, "smp_steps.py", "--model", model, *args, slots=pp, parameters=parameters)
    assert run.codes() == [0] * pp, "\n".join(run.text(rank) for rank in range(pp))
    for row in json.loads((tmp_path / "host0/output/data/smp.json").read_text())["ranks"]:
        assert max(row["difference"], row["whole"]) < EXACT
        assert row["evaluation"] < 1e-5
        assert {name.split(".")[0] for name in row["local"]} == held[row["place"][0]]
    assert run.text(0).count("warning: smp.partition") == 1
    assert said in run.text(0), run.text(0)
    for rank in range(1, pp):
        assert "smp.partition" not in run.text(rank)


ONE = {"partitions": 2, "microbatches": 2}
MANUAL = {**ONE, "auto_partition": False, "default_partition": 0}
FAULTS = [
    ("second model", ONE, "a second smp.DistributedModel; allowed: one per script"),
    ("outside", ONE, "the model is called outside of an @smp.step function"),
    ("no call", ONE, "train_step does not call the model"),
    ("two calls", ONE, "calls the model more than once per microbatch"),
    ("two backward", ONE, "calls model.backward more than once"),
    ("lambda with a tensor", ONE, "an argument or result of an @smp.step function cannot be sent to another rank"),
    ("not a number", ONE, "model.backward: a tensor of shape [4] without a gradient"),
    ("batch", ONE, "argument 'inputs' has a batch of 7 along axis 0; allowed: multiples of microbatches = 2"),
    ("other length", ONE, "mat1 and mat2 shapes cannot be multiplied"),  # what the model itself says
    ("other units", ONE, " is not called, with which a stage begins; allowed: calls that can be cut at the same places"),
    ("shared norm", ONE, "cannot be cut at 2: 0.running_mean = 4.running_mean, 0.running_var = 4.running_var, "
     "0.num_batches_tracked = 4.num_batches_tracked are written to on both sides of it"),
    ("shared norm", MANUAL, "allowed: 1 to 1; fix: ask for fewer partitions"),
    ("clips apart", MANUAL, "weight 4.weight, which several stages use, is no longer the same on the ranks that hold it"),
    ("no such partition", MANUAL, "smp.partition(2); allowed: 0 .. 1; fix: name a partition that exists"),
    ("empty partition", MANUAL, "smp.partition: no module in partition 1; allowed: modules that are called once in each"),
    ("module", ONE, "the module holds the weights of this rank's stages only"),
]  # fmt: skip


# `make test` has the faults that are found by other code each.
@pytest.mark.slow(
    but=["no call", "two backward", "lambda with a tensor", "other units", "shared norm", "clips apart*", "module"]
)
@pytest.mark.parametrize(
    ("what", "parameters", "said"), FAULTS, ids=[f"{fault[0]}{'-manual' * (fault[1] is MANUAL)}" for fault in FAULTS]
)
def test_a_fault_is_one_clear_error_on_every_rank(what, parameters, said, tmp_path):
    run = started(tmp_path, "smp_faults.py", what, parameters=parameters)
    assert run.codes() == [1, 1], run.text(0) + run.text(1)
    for rank in range(2):
        assert said in run.text(rank), run.text(rank)
        assert "came to the end" not in run.text(rank)


ON_THE_LAST_RANK = {
    "no backward": "train_step has not called model.backward, as it did before; fix: call it always or never",
    "backward": "train_step has called model.backward, unlike before; fix: call it always or never",
    "lambda of one rank": "train_step: rank 1 calls it without own, which pickle cannot send it; fix: call it with the "
    "same arguments on all ranks",
    "broken loss": "a loss that the script cannot compute",
}


@pytest.mark.parametrize("what", ON_THE_LAST_RANK)
def test_a_fault_that_only_the_last_rank_sees_is_its_error_and_no_hang(what, tmp_path):
    run = started(tmp_path, "smp_faults.py", what, parameters=ONE)
    assert run.codes() == [1, 1], run.text(0) + run.text(1)
    assert f"Error: {ON_THE_LAST_RANK[what]}" in run.text(1)
    assert "came to the end" not in run.text(0)


def test_an_argument_that_cannot_be_sent_is_the_last_ranks_own(tmp_path):
    run = started(tmp_path, "smp_faults.py", "lambda", parameters=ONE)
    assert run.codes() == [0, 0], run.text(0) + run.text(1)
    for rank in range(2):  # the function adds the number of the rank that it is of
        assert float(run.text(rank).split("loss ")[1].split()[0]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"partitions": 3}, "mp_parameters: partitions = 3 does not divide the job's 2 ranks"),
        ({"partitions": 1}, "partitions = 1 on 2 ranks"),
        ({"partitions": 2, "speed": 1}, "mp_parameters: speed = 1"),
        ({"partitions": 2, "tensor_parallel_degree": 2}, "there is no tensor parallelism here"),
        ({"partitions": 2, "auto_partition": False}, "auto_partition = false"),
    ],
)
def test_wrong_parameters_end_at_init(parameters, said, tmp_path):
    run = started(tmp_path, "smp_faults.py", "none", parameters=parameters)
    assert run.codes() == [1, 1]
    for rank in range(2):
        assert said in run.text(rank), run.text(rank)


ALONE = {  # what the others do meanwhile, and what is said on both ranks; None: rank 1 comes to its end
    "train": "rank 0 calls test_step, rank 1 calls train_step",
    "barrier": "rank 0 calls test_step, rank 1 calls smp.barrier",
    "state": "rank 0 calls test_step, rank 1 calls model.state_dict",
    "end": None,
}


@pytest.mark.slow(but=["train"])
@pytest.mark.parametrize("then", ALONE)
def test_evaluation_on_rank_0_alone_is_an_error_and_no_hang(then, tmp_path):
    """With one partition it works, as it did in AWS's library; with more, the other stages are missing."""
    run = started(tmp_path / "two", "smp_faults.py", "rank 0 evaluates", parameters=ONE, THEN=then)
    codes = run.codes()
    if said := ALONE[then]:
        assert codes == [1, 1]
        for rank in range(2):
            assert said in run.text(rank)
            assert "fix: call it on every rank, not on rank 0 alone" in run.text(rank)
    else:
        assert codes == [1, 0], run.text(1)
        assert "test_step: another rank of this pipeline has ended or failed while rank 0 calls it" in run.text(0)
    one = started(
        tmp_path / "one", "smp_faults.py", "rank 0 evaluates", parameters={"partitions": 1, "ddp": True}, THEN=then
    )
    assert one.codes() == [0, 0], one.text(0)


def test_ranks_that_would_wait_for_each_other_in_different_groups_end_with_an_error(tmp_path):
    """Rank 0 is in a step of its pipeline, the three others in a barrier of all."""
    parameters = {"partitions": 2, "ddp": True}
    run = started(tmp_path, "smp_faults.py", "rank 0 evaluates", hosts=2, parameters=parameters, THEN="barrier of all")
    assert run.codes() == [1] * 4
    for rank in range(2):
        assert "rank 0 calls test_step, rank 1 calls smp.barrier(WORLD)" in run.text(rank), run.text(rank)


def test_a_whole_state_dict_on_rank_0_alone_is_an_error_and_no_hang(tmp_path):
    run = started(tmp_path, "smp_faults.py", "state on rank 0", parameters=ONE)
    assert run.codes() == [1, 0], run.text(1)
    assert "a whole state dict: another rank of this pipeline has ended or failed while rank 0" in run.text(0)


def test_a_model_that_is_split_in_name_only_is_told_once(tmp_path):
    run = started(tmp_path, "smp_faults.py", "looks", parameters=ONE)
    assert run.codes() == [0, 0], run.text(0) + run.text(1)
    assert run.text(0).count("of the planned time, so that the others mostly wait; the model cannot be cut at 1.") == 1
    assert "warning: stage" not in run.text(1)


def test_an_argument_that_autograd_has_computed_may_be_changed_in_place_where_it_arrives():
    packing = Packing(torch.device("cpu"), cannot_be_sent("here"), direct=True)
    weight = torch.ones(2, requires_grad=True)
    sent, _ = packed_batch(packing, {"targets": weight * 3, "weight": weight}, [], frozenset())
    arrived = packing.unpack(sent.data)[0]
    assert arrived["targets"].mul_(2).tolist() == [6, 6]
    assert arrived["weight"].requires_grad
