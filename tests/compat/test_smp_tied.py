"""smdistributed.modelparallel.torch: language models whose head is tied to the embeddings train as without the library."""

from __future__ import annotations

import pytest

from tests.compat.smp_runs import run
from tests.train.parallel.model_zoo import library
from tests.train.training_runs import TRANSFORMERS, load_once

load_once(*TRANSFORMERS)

PROGRAM = "smp_tied.py"
EXACT = 5e-7  # of parameters up to 1, after four steps

CASES = [
    ("2", 2, {"partitions": 2, "microbatches": 4}, ("--clip", "0.5", "--masked")),
    ("2-every-2", 2, {"partitions": 2, "microbatches": 1}, ("--every", "2", "--clip", "0.5")),
    ("2-adds-up", 2, {"partitions": 2, "microbatches": 2}, ("--adds-up",)),
    ("2-by-hand", 2, {"partitions": 2, "microbatches": 2, "auto_partition": False, "default_partition": 0},
     ("--by-hand", "--labels")),
    ("2-llama", 2, {"partitions": 2, "microbatches": 2, "pipeline": "simple"}, ("--model", "llama", "--clip", "0.5")),
    ("2-bert", 2, {"partitions": 2, "microbatches": 2}, ("--model", "bert", "--clip", "0.5")),
    ("4", 4, {"partitions": 4, "microbatches": 4}, ("--clip", "0.5", "--lengths")),
    ("4-local-clip", 4, {"partitions": 4, "microbatches": 2}, ("--clip", "0.5", "--local")),
    ("2x2-spread-every-2", 4, {"partitions": 2, "microbatches": 2, "placement_strategy": "spread"}, ("--every", "2")),
]  # fmt: skip


@pytest.fixture(autouse=True)
def transformers():
    library("transformers")  # or the test is skipped


# `make test` keeps each schedule, each kind of model and each kind of layout, but not all of their combinations.
@pytest.mark.slow(but=["2-llama"])
@pytest.mark.parametrize(("ranks", "parameters", "args"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_tied_head_trains_as_in_the_unsplit_model(ranks, parameters, args, tmp_path):
    rows = run(tmp_path, PROGRAM, "train", *args, ranks=ranks, parameters=parameters)
    for row in rows:
        assert row["difference"] < EXACT
        assert row["whole"] < EXACT
        assert row["norm"] < 1e-5
        assert row["apart"] == []
        assert row["names"]
        assert row["once"]
        assert row["local"]
        assert row["state"]
    replicas = ranks // parameters["partitions"]
    assert sum(row["holds"] for row in rows) == 2 * replicas  # of each pipeline the first and the last stage
    for row in rows:
        if replicas == 1:
            # One collective a step, whatever the microbatches. The first step makes the stages, too.
            step = [0, 1] if "--every" in args else [1, 1]
            assert row["collectives"][2:4] == (step if row["holds"] else [0, 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "layouts"), [((), [(2, 2), (1, 1), (4, 4)]), (("--whole",), [(4, 2)])], ids=["parts", "whole"]
)
def test_a_checkpoint_goes_into_any_layout(kind, layouts, tmp_path):
    path = str(tmp_path / "checkpoint")
    run(tmp_path / "save", PROGRAM, "save", path, *kind, parameters={"partitions": 2, "microbatches": 2})
    for ranks, partitions in layouts:
        layout = {"partitions": partitions, "microbatches": 2}
        rows = run(tmp_path / f"{partitions}", PROGRAM, "resume", path, *kind, ranks=ranks, parameters=layout)
        assert rows == [{"weights": True, "optimizer": True, "apart": []}] * ranks, partitions
