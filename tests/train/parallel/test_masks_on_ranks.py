"""Transformers with masks as pipelines on real ranks, whichever microbatch is padded."""

import json
from pathlib import Path

import pytest

from tests.train.parallel import model_zoo
from tests.train.training_runs import TRANSFORMERS, load_once

load_once(*TRANSFORMERS)

CASES = [
    "bert sdpa 2 zero-bubble padded",
    "bert eager 4 gpipe padded layers",
    "bert-tokens sdpa 4 1f1b full",
    "gpt2 eager 2 1f1b padded",
    "llama sdpa 2 interleaved padded layers",
]


# `make test` keeps each schedule, each kind of model and each kind of layout, but not all of their combinations.
@pytest.mark.slow(but=["llama-sdpa-2-interleaved-padded-layers"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.replace(" ", "-"))
def test_a_pipeline_trains_and_evaluates_as_the_unsplit_model_whichever_microbatch_is_padded(case, ranks):
    model_zoo.library("transformers")  # or the test is skipped
    count = int(case.split()[2])
    run = ranks(1, count, *case.split(), program=str(Path(__file__).parents[1] / "programs" / "masks.py"))
    assert run.codes() == [0] * count, "\n".join(run.text(rank) for rank in range(count))
    rows = [json.loads(run.text(rank).splitlines()[-1]) for rank in range(count)]
    for told in rows:
        assert len(told["gradients"]) == len(told["weights"]) == 4
        assert max(told["gradients"] + told["weights"]) < 5e-7
        assert max(told["evaluation"], default=0.0) < 5e-6  # of a sum over four microbatches
    assert sorted(len(told["evaluation"]) for told in rows) == [0] * (count - 1) + [4]
