"""Scripts for smdistributed.modelparallel whose models look at their masks, with batches that are padded or not."""

from __future__ import annotations

import pytest

from tests.compat.smp_runs import run
from tests.train.parallel.model_zoo import library
from tests.train.training_runs import TRANSFORMERS, load_once

load_once(*TRANSFORMERS)

EXACT = 5e-7  # of weights after four steps


# `make test` keeps each schedule, each kind of model and each kind of layout, but not all of their combinations.
@pytest.mark.slow(but=["bert-tokens-first-2"])
@pytest.mark.parametrize(
    ("model", "where", "partitions"),
    [
        ("own", "later", 2),
        ("own", "first", 4),
        ("bert", "later", 4),
        ("bert-tokens", "first", 2),
        ("gpt2", "later", 2),
        ("gpt2", "first", 4),
        ("llama", "first", 2),
    ],
)
def test_models_that_look_at_their_masks_train_as_the_unsplit_model(model, where, partitions, tmp_path):
    if model != "own":
        library("transformers")  # or the test is skipped
    rows = run(tmp_path, "smp_masks.py", model, where, ranks=partitions, parameters={"partitions": partitions})
    for row in rows:
        assert row["weights"] < EXACT
        assert row["losses"] < 1e-6
        assert row["evaluation"] < 1e-5
        assert 0 < row["share"] < 0.8  # split, and not in name only
    assert sum(row["share"] for row in rows) == pytest.approx(1)


def test_evaluation_may_have_another_type_than_training(tmp_path):
    """Each stage tells the next one the types of what crosses, those of a mask among them."""
    for row in run(tmp_path, "smp_masks.py", "own", "later", "bfloat16"):
        assert row["weights"] < EXACT
        assert row["evaluation"] < 1e-5
