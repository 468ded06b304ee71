"""smdistributed.modelparallel.torch: calls of the model with other lengths, arguments and batch sizes."""

from __future__ import annotations

import pytest

from tests.compat.smp_runs import run
from tests.train.parallel.one_queue import ALL, RECEIVE, SEND, stuck

PROGRAM = "smp_forms.py"


# `make test` keeps each schedule, each kind of model and each kind of layout, but not all of their combinations.
@pytest.mark.slow(but=["2-2-words0"])
@pytest.mark.parametrize(
    ("ranks", "partitions", "words"),
    [(2, 2, ["evaluate first"]), (4, 4, []), (4, 2, ["own"]), (4, 2, ["own", "evaluate first"])],
)
def test_any_form_of_the_arguments_trains_and_evaluates_as_the_model_without_the_library(
    ranks, partitions, words, tmp_path
):
    rows = run(tmp_path, PROGRAM, *words, ranks=ranks, parameters={"partitions": partitions})
    for row in rows:
        assert row["losses"] < 1e-6, row
        assert row["outputs"] < 2e-6, row
        assert row["parameters"] < 2e-6, row
        assert row["forms"] >= 3


@pytest.mark.slow
def test_more_forms_than_are_kept_are_cut_anew(tmp_path):
    rows = run(tmp_path, PROGRAM, "many", parameters={"partitions": 2})
    for row in rows:
        assert row["parameters"] < 2e-6, row
        assert row["forms"] > 11


@pytest.mark.parametrize("auto", [True, False])
def test_only_one_rank_of_a_pipeline_runs_the_whole_model_to_cut_it(auto, tmp_path):
    """Of the other rank's layers rank 1 runs the profile alone, on its own device, and nothing for another form."""
    first, second = run(tmp_path, "smp_once.py", parameters={"auto_partition": auto, "default_partition": 0})
    assert min(min(counts) for counts in first["counts"]) > 10
    strange = [number for number in range(4) if not any(f"{number}.inner" in name for name in second["mine"])]
    assert strange
    assert [second["counts"][0][number] for number in strange] == [4 if auto else 0] * len(strange)
    assert [second["counts"][1][number] for number in strange] == [0] * len(strange)


def test_steps_of_a_pipeline_end_with_one_queue_for_each_rank(tmp_path):
    """Batches for the last rank, its stages' messages and its results, in the order in which NCCL would carry them out."""
    rows = run(tmp_path, "smp_once.py", ranks=4, parameters={"partitions": 4, "microbatches": 4})
    queues = [[[(kind, peer) for kind, peer in batch] for batch in row["queue"]] for row in rows]
    training, evaluation = (2, 2), (2, 1)  # size and looks, then the tensors of a batch
    assert queues[0].count([(SEND, 3)]) == 2 * sum(training) + 2 * sum(evaluation)
    assert queues[3].count([(ALL, -1)]) > 4
    assert stuck(queues) == []
    batches = [each for each in queues[3] if each == [(RECEIVE, 0)]]
    late = [each for each in queues[3] if each != [(RECEIVE, 0)]] + batches
    assert stuck([*queues[:3], late]) != []


# Waits of seconds for a rank that never comes; `make test` has those of steps.
@pytest.mark.slow
def test_ranks_wait_for_the_search_for_another_form_longer_than_for_a_collective(tmp_path):
    assert run(tmp_path, "smp_other_form.py", "slow") == [1, 1]


def test_an_error_of_one_rank_that_takes_another_form_is_that_of_all(tmp_path):
    told, own = run(tmp_path, "smp_other_form.py", "other model")
    assert own == "KeyError: '4.weight'"
    assert told == f"UserError: rank 1 failed: {own}"
