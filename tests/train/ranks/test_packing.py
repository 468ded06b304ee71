"""Objects as bytes and memory: what arrives on another rank is what was packed."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.ranks.packing import Packed, Packing, cannot_be_sent

CPU = torch.device("cpu")
ROWS = 4097


class Named(torch.Tensor):
    """A class of a script's own."""


def travelled(value, direct=False):
    """`value` as another rank has it, and the bytes that travelled by themselves."""
    packing = Packing(CPU, cannot_be_sent("here"), direct=direct)
    data, regions = packing.pack(value)

    def fill(own):
        for mine, its in zip(own, regions, strict=True):
            mine.copy_(its)

    return packing.unpack(data, fill), sum(len(region) for region in regions)


def tensors():
    whole = torch.randn(ROWS, 4)
    named = torch.randn(3)
    named.note = "kept"
    yield from (whole, whole.T, whole[5:7], whole[:, 1], whole[:1].expand(ROWS, 4), whole.bfloat16(), torch.tensor(2))
    yield from (torch.zeros(0, 3), torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last), whole > 0)
    yield from (nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3), requires_grad=False), named)
    yield from (
        whole.clone().requires_grad_(),
        torch.view_as_complex(torch.randn(3, 2)).conj(),
        torch.randn(3)._neg_view(),
    )
    yield from (torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr(), torch.randn(3).as_subclass(Named))


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize(
    "given", list(tensors()), ids=lambda given: f"{tuple(given.shape)} {given.layout} {given.dtype}"
)
def test_a_tensor_arrives_as_it_is(given, direct):
    found, _ = travelled(given, direct)
    assert (type(found), found.dtype, found.layout) == (type(given), given.dtype, given.layout)
    assert (found.requires_grad, found.is_leaf, found.__dict__) == (given.requires_grad, True, given.__dict__)
    if given.layout is torch.strided:
        assert torch.equal(found, given)
    else:
        assert torch.equal(found.to_dense(), given.to_dense())


def test_strides_stay_where_memory_is_used_and_only_that_memory_travels():
    whole = torch.randn(ROWS, 64)
    images = torch.randn(2, 3, 64, 64).to(memory_format=torch.channels_last)
    for given in (whole.T, images, whole[:1].expand(ROWS, 64)):
        assert travelled(given, direct=True)[0].stride() == given.stride()
    assert travelled(whole[100:132], direct=True)[1] == 32 * 64 * 4
    assert travelled([whole[0:8], whole[4000:4008]], direct=True)[1] == 2 * 8 * 64 * 4  # nothing between them
    assert travelled(whole[:, 3], direct=True)[1] == ROWS * 4
    assert travelled(whole[:1].expand(ROWS, 64), direct=True)[1] == 0  # one row, beside the bytes


@pytest.mark.parametrize("direct", [False, True])
def test_what_shares_memory_shares_it_there(direct):
    whole = torch.zeros(ROWS)
    first, rows, same = travelled((whole[:10], whole.view(17, 241), whole), direct)[0]
    first += 1
    assert rows[0, :10].tolist() == same[:10].tolist() == [1.0] * 10
    twice = travelled([whole, whole], direct)[0]
    assert twice[0] is twice[1]
    layer = travelled(nn.Linear(3, 3), direct)[0]
    assert all(parameter.requires_grad for parameter in layer.parameters())


def test_overlapping_types_of_other_sizes_lie_where_they_did():
    memory = torch.arange(64, dtype=torch.uint8)
    parts = memory[4:60].view(torch.int32), memory[8:56].view(torch.int64)
    for found, given in zip(travelled(parts)[0], parts, strict=True):
        assert torch.equal(found, given)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("rows", [(ROWS, 2 * ROWS), (2 * ROWS, ROWS)])
def test_arrays_of_numpy_that_begin_at_one_place_and_differ_in_length(rows, direct):
    array = np.arange(2 * ROWS)
    given = [torch.from_numpy(array[:count]) for count in rows]  # each with a storage of its own
    assert all(map(torch.equal, travelled(given, direct)[0], given))


@pytest.mark.parametrize("direct", [False, True])
def test_arrays_of_numpy_that_begin_at_several_places_share_their_memory(direct):
    array = np.arange(2 * ROWS)
    given = [torch.from_numpy(array[start : start + ROWS]) for start in (0, 1, 5)]
    found = travelled(given, direct)[0]
    assert all(map(torch.equal, found, given))
    found[0].zero_()
    assert [each.count_nonzero() for each in found] == [0, 1, 5]


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("rows", [3, ROWS])
def test_what_was_sent_and_what_arrived_can_grow(rows, direct):
    given = torch.zeros(rows)
    for tensor in (given, travelled(given, direct)[0]):
        assert tensor.resize_(2 * ROWS).shape == (2 * ROWS,)


@pytest.mark.parametrize("direct", [False, True])
def test_a_tensor_without_memory_arrives_as_one(direct):
    layer = travelled(nn.Linear(2, 3, device="meta"), direct)[0]
    assert [(each.device.type, tuple(each.shape)) for each in layer.parameters()] == [("meta", (3, 2)), ("meta", (3,))]


def test_large_tensors_are_not_in_the_bytes_of_a_direct_packing():
    value = {"rows": torch.randn(ROWS), "small": torch.randn(3), "text": "x" * 10}
    packing = Packing(CPU, cannot_be_sent("here"), direct=True)
    packed: Packed = packing.pack(value)
    assert [len(region) for region in packed.regions] == [4 * ROWS]
    assert len(packed.data) < 1000 < len(pickle.dumps(value))


def test_what_cannot_be_packed_is_told_in_the_caller_s_words():
    with pytest.raises(UserError, match=r"^here: an object of type function cannot be sent: .*; fix: send its data$"):
        travelled(lambda: 1)


def test_memory_that_cannot_be_read_is_told_in_the_same_way(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "cpu", None)  # as when a device has failed
    with pytest.raises(UserError, match=r"^here: an object of type Tensor cannot be sent: .*; fix: send its data$"):
        travelled(torch.zeros(3))
