"""Language models are cut at their layers; weights tied across layers are in each segment that uses them."""

import pytest
import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.parallel.cut.layer_list import cut_at_layers, untie
from tests.train import split_runs
from tests.train.parallel import model_zoo


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("make", [model_zoo.gpt2, model_zoo.llama])
def test_language_models_have_one_segment_per_layer(make):
    model, example = make()
    cutting = cut_at_layers(model, example)
    stack = "transformer.h" if make is model_zoo.gpt2 else "model.layers"
    assert [segment.name for segment in cutting.segments] == [f"{stack}.{i}" for i in range(4)]
    shape = (2, 16, 32)  # the hidden state alone: positions and masks are computed in every stage
    assert [[spec.shape for spec in segment.entry] for segment in cutting.segments[1:]] == [[shape]] * 3
    head = cutting.segments[3].parameters
    assert "lm_head.weight" in head
    assert any("embed_tokens" in name or "wte" in name for name in cutting.segments[0].parameters)
    model.eval()
    stages = split_runs.cut_at(cutting, [0, 1, 3])
    for stage in stages:
        stage.eval()
    split_runs.assert_equal(split_runs.whole(model, example), split_runs.split(stages, model, cutting.example))


@pytest.mark.parametrize("make", [model_zoo.gpt2, model_zoo.llama])
def test_tied_embeddings_are_in_the_first_and_the_last_stage(make):
    model, example = make(tied=True)
    embedding = model.get_input_embeddings().weight
    assert model.lm_head.weight is embedding
    cutting = cut_at_layers(model, example)
    stages = split_runs.cut_at(cutting, [0, 1, 3])
    assert [any(p is embedding for p in stage.parameters()) for stage in stages] == [True, False, True]
    model.eval()
    for stage in stages:
        stage.eval()
    split_runs.assert_equal(split_runs.whole(model, example), split_runs.split(stages, model, cutting.example))


@pytest.mark.parametrize("make", [model_zoo.gpt2, model_zoo.llama])
def test_tied_embeddings_can_be_untied(make):
    model, example = make(tied=True)
    expected = split_runs.whole(model.eval(), example)[0]
    assert untie(model) == ["lm_head.weight"]
    assert untie(model) == []
    cutting = cut_at_layers(model, example)
    for mine, its in zip(split_runs.whole(model, example)[0], expected, strict=True):
        assert torch.equal(mine, its)
    assert sum(len(segment.parameters) for segment in cutting.segments) == len(dict(model.named_parameters()))


def test_the_longest_list_by_parameters_is_taken():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))
            self.large = nn.ModuleList(nn.Linear(4 if i == 0 else 64, 64) for i in range(3))

        def forward(self, x):
            x = self.small(x)
            for layer in self.large:
                x = layer(x).relu()
            return x

    model, example = Two(), torch.randn(3, 4)
    cutting = cut_at_layers(model, example)
    assert [segment.name for segment in cutting.segments] == ["large.0", "large.1", "large.2"]
    assert cutting.segments[0].parameters[:2] == ("small.0.weight", "small.0.bias")
    stages = split_runs.cut_at(cutting, [0, 1, 2])
    split_runs.assert_equal(split_runs.whole(model, example), split_runs.split(stages, model, [example]))


class Listed(nn.Module):
    def __init__(self, order) -> None:
        super().__init__()
        self.layers, self.order = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), order

    def forward(self, x):
        return self.order(self.layers, x)


def skipping(parts, x):
    """Adds the first layer's result to the last one's."""
    first = parts[0](x)
    return first + parts[2](parts[1](first * 2))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            Listed(lambda parts, x: parts[1](parts[0](x))),
            r"layer layers\.2 of Listed is not called exactly once.*fix: cut the model with cut",
        ),
        (Listed(skipping), r"cannot be cut at layer layers\.1: a tensor \(2x4\) made before it"),
        (nn.Linear(4, 4), "model Linear has no list of layers"),
    ],
)
def test_what_is_no_chain_of_layers_is_refused(model, words):
    with pytest.raises(UserError, match=words):
        cut_at_layers(model, torch.randn(2, 4))
