"""Weights and buffers that several modules or several calls use: which stages have them."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from algorun_train.common.errors import UserError
from algorun_train.parallel.cut.any_module import cut
from tests.train import split_runs
from tests.train.parallel.cut_checks import Sums, check, linears, names


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_a_module_that_is_called_twice_is_no_unit():
    model = Sums(lambda s, x: s.c(s.act(s.b(s.act(s.a(x))))), act=nn.Tanh(), **linears("a", "b", "c"))
    cutting = check(model, torch.randn(2, 4), finest=True)
    assert names(cutting) == ["a", "b", "c"]


def test_weights_of_a_module_that_is_called_twice_stay_together():
    model = Sums(lambda s, x: s.c(s.b(s.a(s.b(x)))), **linears("a", "b", "c"))
    cutting = check(model, torch.randn(2, 4))
    assert names(cutting) == ["a", "c"]
    with pytest.raises(UserError, match=r"can be cut into 2 at most.*fix: ask for fewer|b\.weight"):
        cut(model, torch.randn(2, 4), stages=3)


def test_a_shared_weight_is_in_each_stage_that_uses_it_and_nowhere_else():
    parts = linears("a", "b", "c", "d")
    parts["c"].weight = parts["a"].weight
    model = Sums(lambda s, x: s.d(s.c(s.b(s.a(x)))), **parts)
    cutting = check(model, torch.randn(2, 4))
    assert names(cutting) == ["a", "b", "c", "d"]
    assert ["a.weight" in segment.parameters for segment in cutting.segments] == [True, False, True, False]
    stages = split_runs.cut_at(cutting, [0, 1, 2, 3])
    assert [sorted(stage.state_dict()) for stage in stages] == [
        ["a.bias", "a.weight", "c.weight"], ["b.bias", "b.weight"], ["a.weight", "c.bias", "c.weight"],
        ["d.bias", "d.weight"],
    ]  # fmt: skip
    for stage in (stages[0], stages[2]):
        assert dict(stage.named_parameters())["a.weight"] is model.a.weight


def test_a_weight_used_outside_of_its_module_is_in_both_stages():
    model = Sums(lambda s, x: functional.linear(s.b(s.a(x)), s.a.weight.t()), **linears("a", "b"))
    cutting = check(model, torch.randn(2, 4))
    assert [segment.parameters for segment in cutting.segments] == [
        ("a.weight", "a.bias"), ("a.weight", "b.weight", "b.bias"),
    ]  # fmt: skip


def test_a_weight_that_a_module_gets_as_an_argument_is_in_both_stages():
    class Given(nn.Module):
        def forward(self, x, weight):
            return functional.linear(x, weight)

    model = Sums(lambda s, x: s.given(s.b(s.a(x)), s.a.weight), given=Given(), **linears("a", "b"))
    cutting = check(model, torch.randn(2, 4))
    assert [segment.parameters for segment in cutting.segments if segment.name in ("a", "given")] == [
        ("a.weight", "a.bias"), ("a.weight",),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.InstanceNorm1d])
def test_a_norm_with_statistics_that_is_called_on_both_sides_stays_in_one_stage(kind):
    norm = kind(4, affine=True, track_running_stats=True)
    model = Sums(lambda s, x: s.d(s.norm(s.c(s.b(s.norm(s.a(x)))))), norm=norm, **linears("a", "b", "c", "d"))
    cutting = cut(model, torch.randn(2, 4, 4), stages=2)
    assert names(cutting) == ["a", "d"]
    assert all("norm.running_mean" in reason for reason in cutting.refused.values())


def test_a_block_that_is_called_again_and_again_is_in_each_stage_and_never_cut():
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model = Sums(lambda s, x: s.c(s.block(s.b(s.block(s.a(s.block(x)))))), block=block, **linears("a", "b", "c"))
    cutting = check(model, torch.randn(2, 4), finest=True)
    assert names(cutting) == ["a", "b", "c"]
    assert ["block.0.weight" in segment.parameters for segment in cutting.segments] == [True, True, False]


def test_a_buffer_that_is_written_to_cannot_be_shared_between_stages():
    class Counting(nn.Module):
        def __init__(self, count):
            super().__init__()
            self.register_buffer("count", count)

        def forward(self, x):
            self.count.add_(x.detach().mean())
            return x * self.count.clone()

    count = torch.zeros(())
    parts = {"first": Counting(count), "second": Counting(count)}
    model = Sums(lambda s, x: s.c(s.second(s.b(s.first(s.a(x))))), **parts, **linears("a", "b", "c"))
    cutting = cut(model, torch.randn(2, 4), stages=3)
    assert names(cutting) == ["a", "first", "c"]
    assert set(cutting.refused) == {"b", "second"}
    reason = "first.count = second.count is written to on both sides of it"
    assert set(cutting.refused.values()) == {reason}
    with pytest.raises(UserError, match=rf"4 stages.*b: {reason}.*fix: ask for fewer stages"):
        cut(model, torch.randn(2, 4), stages=4)
