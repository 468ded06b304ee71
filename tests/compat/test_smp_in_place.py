"""smdistributed.modelparallel.torch: step functions that change their arguments in place."""

from __future__ import annotations

import json

import pytest
import torch

from smdistributed.modelparallel.core.own_arguments import changed, copied, watched
from tests.compat.smp_runs import MARK, run, started

PROGRAM = "smp_in_place.py"
TWO = {"partitions": 2, "microbatches": 2}


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_function_may_change_its_arguments(partitions, tmp_path):
    """Before and after the model's call; the last stage runs it once more than it has microbatches, and it pops a key."""
    for row in run(tmp_path, PROGRAM, "function", parameters={"partitions": partitions}):
        assert row["losses"] < 1e-6
        assert row["kept"] == [partitions == 2] * 3


def test_a_model_may_change_its_argument_and_rank_0_warns(tmp_path):
    job = started(tmp_path, PROGRAM, "model", parameters=TWO)
    assert job.codes() == [0, 0], job.text(0) + job.text(1)
    for rank in range(2):
        (line,) = [line for line in job.text(rank).splitlines() if line.startswith(MARK)]
        row = json.loads(line.removeprefix(MARK))
        assert row["losses"] < 1e-6
        assert row["kept"] == [True] * 3
    assert job.text(0).count("warning: the model changes the argument rows of train_step in place") == 1
    assert "warning: the model" not in job.text(1)


def test_a_function_that_begins_to_change_an_argument_is_refused_on_every_rank(tmp_path):
    for row in run(tmp_path, PROGRAM, "later"):
        assert row["losses"] < 1e-6
        assert row["said"].startswith(
            "UserError: train_step changes its arguments extra, rows in place, but did not in its first step; allowed: "
        )


def test_an_object_that_the_script_changes_between_steps_is_read_as_it_is_now(tmp_path):
    for row in run(tmp_path, PROGRAM, "options"):
        assert row["losses"] < 1e-6


@pytest.mark.parametrize("partitions", [1, 2])
def test_the_model_gets_a_shared_tensor_as_it_is_at_its_call(partitions, tmp_path):
    for row in run(tmp_path, PROGRAM, "shared", parameters={"partitions": partitions}):
        assert row["losses"] < 1e-6
        assert row["kept"] == [partitions == 2] * 3


@pytest.mark.parametrize("partitions", [1, 2])
def test_what_changes_in_one_argument_changes_in_a_view_of_its_memory(partitions, tmp_path):
    for row in run(tmp_path, PROGRAM, "views", parameters={"partitions": partitions}):
        assert row["losses"] < 1e-6
        assert row["kept"] == [partitions == 2] * 3


def test_copies_share_what_the_arguments_share_and_weights_stay_themselves():
    rows, weight = torch.ones(4), torch.nn.Parameter(torch.ones(2))
    part = {"rows": rows[:2], "labels": [rows[:2]], "weight": weight, "other": rows[2:]}
    (own,) = copied([part], {"rows", "labels", "weight"})
    before = watched([own])
    own["rows"].add_(1)
    assert changed(before) == {"rows", "labels"}
    assert own["labels"][0].tolist() == [2, 2]
    assert rows.tolist() == [1, 1, 1, 1]
    assert own["weight"] is weight
    assert own["other"] is part["other"]
    with torch.inference_mode():
        assert watched([{"rows": torch.ones(2)}]) == {"rows": []}


def test_copies_of_tensors_without_plain_memory():
    """A complex tensor and its conjugate lie in the same memory; a sparse or nested tensor has no address."""
    rows = torch.tensor([1 + 2j, 3 - 1j])
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    others = [torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr(), nested]
    (own,) = copied([{"rows": rows, "turned": rows.conj(), "imaginary": rows.conj().imag, "others": others}], None)
    assert own["rows"].tolist() == [1 + 2j, 3 - 1j]
    assert own["turned"].tolist() == [1 - 2j, 3 + 1j]
    assert own["imaginary"].tolist() == [-2, 1]
    assert [each.layout for each in own["others"]] == [each.layout for each in others]
    assert not any(mine is theirs for mine, theirs in zip(own["others"], others, strict=True))
