"""smp.partition: where modules are placed that the script wishes elsewhere than they can be, and what is said of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.parallel.cut.any_module import cut
from smdistributed.modelparallel.core import placement


class Residual(nn.Module):
    """The two inner units cannot be separated."""

    def __init__(self, wide):
        super().__init__()
        self.up, self.down = nn.Linear(4, wide), nn.Linear(wide, 4, bias=False)

    def forward(self, x):
        return x + self.down(self.up(x))


def placed(partitions, stages, *modules):
    """Of a Sequential whose modules are in `partitions` (None: the default, which is 0)."""
    model = nn.Sequential(*modules)
    for module, partition in zip(modules, partitions, strict=True):
        if partition is not None:
            module.__dict__[placement.MARK] = partition
    cutting = cut(model, torch.randn(2, 4), stages=stages, finest=True)
    begins, warning = placement.placed(cutting, model, 0, stages)
    return [cutting.segments[begin].units[0] for begin in begins], warning


def linears(count):
    return [nn.Linear(4, 4) for _ in range(count)]


def test_in_order_nothing_is_said():
    assert placed([None, 0, 1, 1, 2], 3, *linears(5)) == (["0", "2", "4"], None)


def test_partitions_in_another_order_are_kept_whole():
    begins, warning = placed([1, 1, 0, 0], 2, *linears(4))
    assert begins == ["0", "2"]
    assert "does not follow; pp_rank 0 .. 1 have partitions 1, 0; results are the same" in warning


def test_units_that_cannot_be_separated_go_by_their_bytes():
    block = Residual(8)  # up has more parameters than down
    block.up.__dict__[placement.MARK], block.down.__dict__[placement.MARK] = 1, 0
    begins, warning = placed([0, None, 1], 2, nn.Linear(4, 4), block, nn.Linear(4, 4))
    assert begins == ["0", "1.up"]
    assert "moved: 1.down (from partition 0 to 1);" in warning


def test_the_largest_are_named_and_a_module_stands_for_all_in_it():
    wide = [nn.Sequential(nn.Linear(4, 400), nn.Linear(400, 4)) for _ in range(2)]
    small = [nn.Linear(4, 4, bias=number % 2 == 1) for number in range(10)]
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    begins, warning = placed([0, *[1, 0] * 5, 1, 0], 2, wide[0], *small, wide[1], block)
    assert begins == ["0.0", "11.0"]
    assert (
        "moved: 12 (from partition 0 to 1), 1 (from partition 1 to 0), 3 (from partition 1 to 0), 5 (from partition 1 "
        "to 0) and 2 more; results"
    ) in warning


def test_a_partition_without_a_module_is_refused():
    with pytest.raises(UserError, match="no module in partition 1, 3; allowed: .* in each of 0 .. 3"):
        placed([0, None, 2, 0], 4, *linears(4))
