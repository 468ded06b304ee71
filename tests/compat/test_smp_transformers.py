"""smdistributed.modelparallel.torch: a language model of transformers, as scripts train it."""

from __future__ import annotations

import pytest

from tests.compat.smp_runs import run
from tests.train.training_runs import TRANSFORMERS, load_once

load_once(*TRANSFORMERS)


# `make test` keeps each schedule, each kind of model and each kind of layout, but not all of their combinations.
@pytest.mark.slow
def test_gpt2_with_its_tied_head_trains_on_padded_batches_of_any_length(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    folder = str(tmp_path / "checkpoints")
    for row in run(tmp_path, "smp_transformers.py", folder, ranks=4):
        assert row["norms"] < 1e-6
        assert row["evaluation"] < 1e-6
        assert row["weights"] < 1e-7
        assert row["forms"] >= 3
        assert row["back"]
