"""What a segment costs: known bytes exactly, seconds plausibly, and nothing of the model is changed by measuring it."""

import copy
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from algorun_train.parallel.cut.any_module import Cut, cut
from algorun_train.parallel.model.memory import give_memory, with_values
from algorun_train.parallel.partition.profiling import entries, profile
from tests.train.parallel import model_zoo


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def chain():
    """Widths 4 -> 8 -> 8 -> 2: linear, ReLU, linear; batches of 3."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return cut(model, torch.randn(3, 4), stages=3)


def test_bytes_of_a_chain_are_the_known_ones():
    first, relu, last = profile(chain(), "cpu")
    assert (first.name, relu.name, last.name) == ("0", "1", "2")
    assert [cost.parameter_bytes for cost in (first, relu, last)] == [4 * (4 * 8 + 8), 0, 4 * (8 * 2 + 2)]
    assert [cost.boundary_bytes for cost in (first, relu, last)] == [4 * 3 * 4, 4 * 3 * 8, 4 * 3 * 8]
    # The first layer saves the model's input, ReLU its result, and the last layer the same tensor once more.
    assert [cost.saved_bytes for cost in (first, relu, last)] == [0, 4 * 3 * 8, 0]


def test_a_shared_weight_is_in_the_bytes_of_each_segment_that_uses_it():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    costs = profile(cut(model, torch.randn(3, 4), stages=3), "cpu")
    assert [cost.parameter_bytes for cost in costs] == [4 * (16 + 4), 0, 4 * (16 + 4)]
    assert [cost.shared for cost in costs] == [(("0.weight", 4 * 16),), (), (("0.weight", 4 * 16),)]


def test_the_loss_counts_with_the_last_segment():
    labels = torch.tensor([0, 1, 1])
    without, costs = (
        profile(chain(), "cpu", loss=loss)
        for loss in (None, lambda output: nn.functional.cross_entropy(output, labels))
    )
    # Cross entropy keeps the logarithms of the shares [3, 2], the labels and the sum of their weights.
    more = [many.saved_bytes - few.saved_bytes for many, few in zip(costs, without, strict=True)]
    assert more == [0, 0, 4 * 3 * 2 + 8 * 3 + 4]


def test_saved_bytes_add_up_when_segments_are_joined():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    cutting = cut(model, torch.randn(3, 4), stages=5)

    class Joined:
        segments, example = (cutting.segments[0],), cutting.example

        def stage(self, begin, end):
            return cutting.stage(0, 5)

    whole = profile(Joined(), "cpu")[0]
    assert sum(cost.saved_bytes for cost in profile(cutting, "cpu")) == whole.saved_bytes


class Slow(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.linear = seconds, nn.Linear(4, 4)

    def forward(self, x):
        time.sleep(self.seconds)
        return self.linear(x)


def test_seconds_are_those_of_the_segment():
    cutting = cut(nn.Sequential(Slow(0.0), Slow(0.2), Slow(0.0)), torch.randn(2, 4), stages=3)
    costs = profile(cutting, "cpu", repeats=3)
    assert len(costs) == 3
    assert 0.2 <= costs[1].forward_s < 2
    assert costs[0].forward_s < 0.2 > costs[2].forward_s
    assert all(0 < cost.backward_s < 1 for cost in costs)


def test_measuring_leaves_no_trace():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    cutting = cut(model, torch.randn(6, 4), stages=3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    places = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    profile(cutting, "cpu", repeats=4)
    assert torch.equal(random, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert tensor.data_ptr() == places[name]


def test_whole_numbers_keep_valid_values():
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Embedding(5, 4)

        def forward(self, x, words):
            return self.second(words) + self.first(x)

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.words = nn.Linear(4, 4), Words()

        def forward(self, x, words):
            return self.words(self.scale(x), words)

    cutting = cut(Chain(), (torch.randn(3, 4), torch.tensor([4, 0, 2])), stages=2)
    assert [spec.shape for spec in cutting.segments[1].entry] == [(3,), (3, 4)]
    assert len(profile(cutting, "cpu")) == len(cutting.segments)


def test_entries_under_another_precision():
    cutting = chain()
    assert entries(cutting, "cpu") == [*(segment.entry for segment in cutting.segments), cutting.output]
    lower = entries(cutting, "cpu", "bf16")
    assert [specs[0].dtype for specs in lower] == [torch.float32, *[torch.bfloat16] * 3]
    costs = profile(cutting, "cpu", precision="bf16")
    assert [cost.boundary_bytes for cost in costs] == [sum(spec.bytes for spec in specs) for specs in lower[:-1]]


def test_a_segment_holds_no_weights_but_its_own():
    model = model_zoo.Glued()
    cutting = cut(model, torch.randn(2, 8, 6), stages=2)
    costs = profile(cutting, "cpu")
    total = sum(parameter.numel() * 4 for parameter in model.parameters())
    assert sum(cost.parameter_bytes for cost in costs) == total
    assert max(cost.parameter_bytes for cost in costs) < total / 3


def test_a_model_without_memory_costs_the_bytes_of_one_with_weights():
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 4))
    example = torch.randn(3, 4)
    cutting = cut(model, example, stages=5)
    empty = Cut(copy.deepcopy(model).to("meta"), example, cutting.found)
    for real, found in zip(profile(cutting, "cpu"), profile(empty, "cpu"), strict=True):
        assert replace(found, forward_s=0, backward_s=0) == replace(real, forward_s=0, backward_s=0)
        assert found.forward_s > 0
    assert entries(empty, "cpu") == entries(cutting, "cpu")
    assert all(parameter.is_meta for parameter in empty.stage(0, 5).parameters())


def test_values_of_a_profile_keep_activations_at_their_size():
    """Shrinking ones would become denormal numbers, which a CPU computes slowly."""
    deep = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(50))).to("meta")
    with with_values(deep, torch.device("cpu")):
        assert 0.01 < float(deep(torch.randn(8, 64)).detach().std()) < 100
    assert all(parameter.is_meta for parameter in deep.parameters())


def test_a_weight_of_several_modules_gets_memory_once():
    first, second = nn.Linear(4, 4).to("meta"), nn.Linear(4, 4).to("meta")
    second.weight, first.bias.requires_grad = first.weight, False
    give_memory([first, second], torch.device("cpu"))
    assert first.weight is second.weight
    assert not first.weight.is_meta
    assert not first.bias.requires_grad
    assert second.bias.requires_grad
