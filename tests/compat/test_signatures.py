"""Signatures of a model's calls, and whether its samples are independent of each other."""

from __future__ import annotations

import argparse
import copy
import threading

import numpy
import pytest
import torch
from torch import nn

from algorun_smdistributed.signatures.fit import AGAIN, Fit, fit, in_pieces, whole_of
from algorun_smdistributed.signatures.independent_samples import by_mode
from algorun_smdistributed.signatures.model_call import ModelCall
from algorun_train.common.errors import UserError

CPU = torch.device("cpu")


class Scaled(nn.Linear):
    def forward(self, rows, scale=1.0):
        return super().forward(rows) * scale


def call(rows, **kwargs):
    return ModelCall((torch.ones(rows, 4),), kwargs)


MODEL = Scaled(4, 4)


def test_an_argument_with_its_default_is_the_same_call():
    assert call(2).signature(MODEL) == call(2, scale=1.0).signature(MODEL)
    assert call(2).signature(MODEL) != call(2, scale=2.0).signature(MODEL)


def test_an_object_counts_as_what_it_holds_now():
    options = argparse.Namespace(scale=1.0, names=["a"], mask=numpy.ones(3))
    before = call(2, scale=options).signature(MODEL)
    assert call(2, scale=options).signature(MODEL) == before
    assert call(2, scale=copy.deepcopy(options)).signature(MODEL) == before
    options.scale = 2.0
    now = call(2, scale=options).signature(MODEL)
    assert now.rows_of(before) is None
    mine, its, _ = now.difference(before)
    assert (mine[:28], its[:28]) == ("scale=Namespace(scale=2.0, n", "scale=Namespace(scale=1.0, n")


@pytest.mark.parametrize("other", [lambda: 0, MODEL, threading.Lock()])
def test_an_object_without_content_counts_as_itself(other):
    assert call(2, scale=other).signature(MODEL) == call(2, scale=other).signature(MODEL)
    assert call(2, scale=other).signature(MODEL) != call(2, scale=Scaled(4, 4)).signature(MODEL)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (
            call(2, scale=2.0),
            ("scale=1.0", "scale=2.0", "the same arguments in every step, or a tensor for what changes"),
        ),
        (call(3), ("rows=[2, 4] float32", "rows=[3, 4] float32", "equal batch sizes")),
        (
            ModelCall((torch.ones(2, 4),), {}, torch.bfloat16),
            ("autocast to nothing", "autocast to bfloat16", "enter torch.autocast in every training step, or in none"),
        ),
    ],
)
def test_a_difference_is_told_with_its_fix(other, difference):
    assert call(2).signature(MODEL).difference(other.signature(MODEL)) == difference


def test_only_batch_sizes_may_differ_for_pieces():
    assert call(6).signature(MODEL).rows_of(call(4).signature(MODEL)) == (6, 4)
    assert call(6, scale=2.0).signature(MODEL).rows_of(call(4).signature(MODEL)) is None


def test_pieces_of_a_larger_batch_are_put_together_without_what_fills_them_up():
    made_for, how, rows = call(4).signature(MODEL), Fit(pieces=2, rows=6), torch.arange(24.0).view(6, 4)
    pieces = in_pieces([rows], made_for, how)
    assert [piece[0].shape[0] for piece in pieces] == [4, 4]
    assert torch.equal(whole_of([{"out": piece[0]} for piece in pieces], how)["out"], rows)


def test_microbatches_of_several_signatures_are_refused():
    with pytest.raises(
        UserError, match=r"with rows=\[3, 4\] float32 in one microbatch and with rows=\[2, 4\] float32 in"
    ):
        fit([call(2), call(3)], MODEL, [], trains=True, plans=True)
    assert fit([call(2), call(2)], MODEL, [], trains=True, plans=False) == Fit(cut=AGAIN)


@pytest.mark.parametrize(
    ("model", "independent"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout()), {True: True, False: True}),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), {True: False, False: True}),
        (nn.Sequential(nn.Linear(4, 4), nn.Softmax(0)), {True: False, False: False}),
    ],
    ids=["dropout", "batch norm", "softmax over the batch"],
)
def test_samples_that_look_at_each_other_are_found(model, independent):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    rows = ModelCall((torch.randn(6, 4, generator=torch.Generator().manual_seed(1)),), {})
    assert by_mode(model, rows, CPU) == independent
    assert torch.equal(torch.get_rng_state(), before)
