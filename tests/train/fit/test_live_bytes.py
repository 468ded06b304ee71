"""The bytes that are alive, counted beside what one would add up by hand."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from algorun_train.fit.live_bytes import OTHER, LiveBytes

KB = 1024


@pytest.fixture(params=["real", "fake"])
def live(request):
    if request.param == "real":
        with LiveBytes() as counting:
            yield counting
    else:
        with FakeTensorMode(), LiveBytes() as counting:
            yield counting


def kilobytes(count: int) -> torch.Tensor:
    return torch.empty(count * KB, dtype=torch.uint8)


def test_the_peak_is_that_of_tensors_that_live_at_once(live):
    first = kilobytes(4)
    del first
    second, third = kilobytes(3), kilobytes(2)
    assert live.peak(0) == {OTHER: 5 * KB}
    del second, third
    assert live.peak(live.changes) == {}


def test_views_and_operations_in_place_take_nothing(live):
    whole = kilobytes(4)
    part = whole[: 2 * KB].view(2, -1)
    whole.zero_()
    del whole
    assert live.peak(0) == {OTHER: 4 * KB}
    del part
    kilobytes(1)
    assert live.peak(live.changes - 1) == {OTHER: KB}


def test_what_autograd_keeps_for_the_backward_pass_lives(live):
    weight = torch.ones(KB, requires_grad=True)
    since = live.changes
    result = (weight * 2).exp().sum()
    assert live.peak(since)[OTHER] == 3 * 4 * KB  # the weight, its product, and exp's result, which is kept
    before = live.changes
    result.backward()
    assert live.peak(before)[OTHER] >= (1 + 1 + 1) * 4 * KB


def test_memory_that_a_storage_gives_back_and_takes_again_is_counted(live):
    unit = kilobytes(4)
    unit.untyped_storage().resize_(0)
    other = kilobytes(2)
    assert live.peak(live.changes - 1) == {OTHER: 2 * KB}
    unit.untyped_storage().resize_(4 * KB)
    live.mark_resized("gathered")
    assert live.peak(live.changes) == {OTHER: other.nbytes, "gathered": 4 * KB}


def test_a_kind_counts_also_for_the_time_before_it_was_said(live):
    weight = kilobytes(4)
    peak_at = live.changes
    rest = kilobytes(1)
    live.mark([weight], "weights")
    assert live.peak(peak_at) == {"weights": 4 * KB, OTHER: rest.nbytes}


def test_after_the_block_nothing_is_counted_and_storages_are_torch_s_own():
    before = torch.UntypedStorage.resize_
    with LiveBytes() as counting:
        assert torch.UntypedStorage.resize_ is not before
    kilobytes(1)
    assert counting.changes == 0
    assert torch.UntypedStorage.resize_ is before
