"""smdistributed.modelparallel.torch: a batch in microbatches, and what they return."""

from __future__ import annotations

from collections import UserDict, namedtuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorun_train.common.errors import UserError
from smdistributed.modelparallel.core.step_function import split
from smdistributed.modelparallel.torch import StepOutput
from smdistributed.modelparallel.torch.step_output import joined

Pair = namedtuple("Pair", "a b")


class Own:
    """As the documentation's example of an object that slices itself."""

    def __init__(self, data):
        self.data = data

    def smp_slice(self, num_mb, mb, axis):
        size = self.data.size(axis) // num_mb
        return Own(self.data.narrow(axis, mb * size, size))


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2), st.booleans())
def test_the_microbatches_of_a_tensor_are_the_tensor(count, each, axis, negative):
    shape = [2, 3, 4]
    shape[axis] = count * each
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    parts = split({"x": whole}, count, set(), {"x": axis - 3 if negative else axis})
    assert len(parts) == count
    assert torch.equal(torch.cat([part["x"] for part in parts], dim=axis), whole)


def test_containers_are_split_and_other_things_are_not():
    rows, other = torch.arange(8).view(4, 2), object()
    given = {
        "list": [rows, [rows, 3]],
        "tuple": (rows, "text"),
        "pair": Pair(rows, None),
        "dict": {"x": {"y": rows}},
        "mapping": UserDict(x=rows),
        "set": {rows},
        "own": Own(rows),
        "scalar": torch.tensor(3.0),
        "other": other,
        "mask": rows,
        "columns": rows,
    }
    first, second = split(given, 2, {"mask"}, {"columns": 1})
    for part, expected in ((first, rows[:2]), (second, rows[2:])):
        found = [
            part["list"][0],
            part["list"][1][0],
            part["tuple"][0],
            part["pair"].a,
            part["dict"]["x"]["y"],
            part["mapping"]["x"],
            next(iter(part["set"])),
            part["own"].data,
        ]
        assert all(torch.equal(tensor, expected) for tensor in found)
        assert [type(part[name]) for name in given] == [type(value) for value in given.values()]
        assert (part["list"][1][1], part["tuple"][1], part["pair"].b) == (3, "text", None)
        assert part["other"] is other
        assert part["scalar"] is given["scalar"]
        assert part["mask"] is rows
    assert torch.equal(second["columns"], rows[:, 1:])


@pytest.mark.parametrize(
    ("tensor", "axis", "message"),
    [
        (torch.zeros(6, 2), 0, "smp.step: argument 'x' has a batch of 6 along axis 0; allowed: multiples of microbatches = 4; fix: drop_last=True .*"),
        (torch.zeros(0, 2), 0, "smp.step: argument 'x' has a batch of 0 along axis 0; .*"),
        (torch.zeros(8, 3), 1, "smp.step: argument 'x' has a batch of 3 along axis 1; .*"),
        (torch.zeros(8), 1, r"smp.step: argument 'x' has a tensor of shape \(8,\) without axis 1; allowed: -1 .. 0; fix: .*"),
    ],
)  # fmt: skip
def test_a_batch_that_does_not_divide_is_refused_by_name(tensor, axis, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        split({"other": 1, "x": [tensor]}, 4, set(), {"x": axis})


def results():
    weight = torch.ones(2, requires_grad=True)
    return [{"loss": (weight * n).sum(), "rows": (weight * n, [n, "text"]), "count": torch.tensor(n)} for n in (1, 2)]


def test_every_tensor_becomes_a_step_output_and_other_values_a_list():
    out = joined(results(), detach=True)
    assert (out["rows"][1], type(out["rows"])) == ([[1, 2], ["text", "text"]], tuple)
    loss, rows, count = out["loss"], out["rows"][0], out["count"]
    assert [type(x) for x in (loss, rows, count)] == [StepOutput] * 3
    assert [x.item() for x in loss.outputs] == [2.0, 4.0]
    assert (loss.reduce_mean().item(), loss.reduce_sum().item(), loss.stack().tolist()) == (3.0, 6.0, [2.0, 4.0])
    assert rows.concat().tolist() == [1.0, 1.0, 2.0, 2.0]
    assert rows.stack().tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert rows.reduce_mean().tolist() == [1.5, 1.5]
    assert count.reduce_mean().item() == 1.5  # whole numbers too
    assert not any(tensor.requires_grad for tensor in rows.outputs)
    assert all(tensor.requires_grad for tensor in joined(results(), detach=False)["rows"][0].outputs)
    assert joined([None, None], detach=True) is None


def test_what_cannot_be_joined_is_refused():
    with pytest.raises(
        UserError, match=r"^StepOutput.concat: the tensors have no batch dimension; .* fix: stack\(\).*$"
    ):
        joined(results(), detach=True)["loss"].concat()
    with pytest.raises(UserError, match=r"^smp.step: .* different numbers of tensors \(1, 0\); .*$"):
        joined([{"loss": torch.zeros(1)}, {}], detach=True)
