"""smdistributed.modelparallel.torch: calls of the model with other lengths, arguments and batch sizes."""

from __future__ import annotations

import pytest

from tests.compat.smp_runs import run

PROGRAM = "smp_forms.py"


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


def test_more_forms_than_are_kept_are_cut_anew(tmp_path):
    rows = run(tmp_path, PROGRAM, "many", parameters={"partitions": 2})
    for row in rows:
        assert row["parameters"] < 2e-6, row
        assert row["forms"] > 11
