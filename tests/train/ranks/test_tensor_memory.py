"""Copies of tensors share memory as the tensors do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorun_train.ranks.tensor_memory import copies, regions


class Named(torch.Tensor):
    """A class of a script's own."""


def copied(*tensors):
    return copies(tensors, [True] * len(tensors))


@given(st.data())
def test_a_change_is_seen_where_it_is_seen_in_the_tensors_themselves(data):
    whole = torch.arange(48, dtype=torch.float32)
    places = st.tuples(st.integers(0, 8), st.integers(1, 3), st.integers(1, 3), st.integers(0, 9), st.integers(0, 9))
    shown = data.draw(st.lists(places, min_size=1, max_size=5))
    tensors = [whole.as_strided((rows, columns), (step, one), at) for at, rows, columns, step, one in shown]
    own = copied(*tensors)
    assert all(map(torch.equal, own, tensors))
    row = data.draw(st.integers(0, len(tensors) - 1))
    for each in (tensors[row], own[row]):
        each[0, 0] = -1
    assert all(map(torch.equal, own, tensors))


def test_a_change_counts_in_the_version_of_all_that_share_the_memory():
    whole = torch.zeros(4, 7)
    rows, targets, other = copied(whole[:2, :5], whole[:2, 4:], whole[2:])
    before = targets._version, other._version
    rows.add_(1)
    assert (targets._version > before[0], other._version) == (True, before[1])


def test_what_shares_memory_with_a_wanted_tensor_is_copied_and_nothing_else():
    whole, weight = torch.zeros(4, 7), torch.nn.Parameter(torch.ones(3))
    tensors = [whole[:, :5], whole[:, 4:], torch.ones(2), weight, weight.detach()]
    own = copies(tensors, [True, False, False, True, True])
    assert [mine is given for mine, given in zip(own, tensors, strict=True)] == [False, False, True, True, False]
    assert torch.equal(own[4], weight)


def test_arrays_of_numpy_over_each_other_and_other_types_of_the_same_memory():
    array = np.zeros(9, dtype=np.float32)
    rows, later = torch.from_numpy(array[:7]), torch.from_numpy(array[1:])  # each with a storage of its own
    own = copied(rows, later, rows[2:4].view(torch.int64), later[:0])
    own[0].fill_(1)
    assert own[1].tolist() == [1] * 6 + [0] * 2
    assert own[2].view(torch.float32).tolist() == [1, 1]
    assert array.tolist() == [0] * 9


def test_memory_that_lies_at_odd_addresses():
    data = bytearray(64)
    whole = torch.frombuffer(data, dtype=torch.float32, offset=1, count=8)
    own = copied(whole[:5], whole[4:], torch.frombuffer(data, dtype=torch.uint8))
    own[0].add_(1)
    assert own[1].tolist() == [1, 0, 0, 0]


def test_conjugates_negatives_and_a_class_of_the_script():
    rows = torch.tensor([1 + 2j, 3 - 1j])
    turned, imaginary, named = copied(rows.conj(), rows.conj().imag, torch.view_as_real(rows).as_subclass(Named))
    assert turned.tolist() == [1 - 2j, 3 + 1j]
    assert imaginary.tolist() == [-2, 1]
    assert type(named) is Named
    named.zero_()
    assert turned.tolist() == [0, 0]


@pytest.mark.parametrize("tensor", [torch.zeros(0, 3), torch.zeros(3, device="meta"), torch.ones(1).expand(4)])
def test_a_tensor_without_memory_of_its_own(tensor):
    first, second = copied(tensor, tensor)
    assert first.shape == second.shape == tensor.shape
    assert first is not tensor


def test_a_graph_stays_where_nothing_else_lies_in_the_memory():
    x = torch.ones(4, requires_grad=True) * 2
    alone, first, second = *copied(x), *copied(x[:3], x[1:])
    assert (alone.requires_grad, first.requires_grad, second.requires_grad) == (True, False, False)


def test_tensors_whose_bytes_do_not_meet_are_regions_of_their_own():
    whole = torch.zeros(6, 4)
    found = regions([whole[:2], whole[2:4], whole[3:], torch.zeros(2)])
    assert sorted([one.place for one in region.used] for region in found) == [[0], [1, 2], [3]]
