"""Models that look at their masks before their layers are cut between these, whatever the next batch's mask is."""

import pytest
import torch
from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.parallel.cut import value_dependence
from algorun_train.parallel.cut.any_module import cut
from algorun_train.parallel.cut.layer_list import cut_at_layers
from algorun_train.parallel.model.trees import arguments, leaves, mapped
from algorun_train.parallel.partition.profiling import entries, profile
from algorun_train.parallel.run.options import RunOptions
from algorun_train.parallel.run.stage import Stage
from tests.train import split_runs
from tests.train.parallel import model_zoo
from tests.train.training_runs import TRANSFORMERS, load_once

from .masked_models import LENGTH, ROWS, WAYS, Masked, branch, mask

load_once(*TRANSFORMERS)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def copied(example):
    """For models that write to their inputs."""
    return mapped(example, torch.Tensor.clone)


def check(cutting, model, examples, begins=None):
    """One after the other through the same stages, in training and in evaluation."""
    stages = split_runs.cut_at(cutting, begins or list(range(len(cutting.segments))))
    for mode in (True, False):
        for module in (model, *stages):
            module.train(mode)
        for example in examples:
            expected = split_runs.whole(model, copied(example))
            split_runs.assert_equal(expected, split_runs.split(stages, model, leaves(arguments(copied(example)))))
            with torch.no_grad():
                torch.manual_seed(3)
                passed = leaves(arguments(copied(example)))
                for stage in stages:
                    passed = leaves(stage(*passed))
                assert all(torch.equal(mine, its) for mine, its in zip(passed, expected[0], strict=True))


# `make test` keeps each schedule, each kind of model and each kind of layout, but not all of their combinations.
@pytest.mark.slow(but=["bert-classes-sdpa-padded"])
@pytest.mark.parametrize("example", ["full", "padded"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("make", "stack"),
    [
        (lambda a: model_zoo.bert("ForSequenceClassification", a), "bert.encoder.layer"),
        (lambda a: model_zoo.bert("ForMaskedLM", a), "bert.encoder.layer"),
        (lambda a: model_zoo.gpt2(attention=a), "transformer.h"),
        (lambda a: model_zoo.llama(attention=a), "model.layers"),
    ],
    ids=["bert-classes", "bert-tokens", "gpt2", "llama"],
)
def test_transformers_are_cut_at_every_layer_with_a_mask(make, stack, attention, example):
    model, given = make(attention)
    full, short, left = torch.ones(2, 16).long(), model_zoo.padded(2, 16, [16, 9]), torch.ones(2, 16).long()
    left[0, :5] = 0
    examples = [given | {"attention_mask": each} for each in (full, short, left, full)]
    cutting = cut(model, given | {"attention_mask": full if example == "full" else short}, stages=2)
    assert {f"{stack}.{i}" for i in range(4)} <= {segment.name for segment in cutting.segments}
    if attention == "sdpa":  # the 2D mask crosses, and the 4D one, which may be None, does not
        shapes = [{spec.shape for spec in segment.entry} for segment in cutting.segments if stack in segment.name]
        assert shapes == [{(2, 16, 32), (2, 16)}] * 4
    check(cutting, model, examples)
    check(cutting, model, examples, [0, 1, 2, 4])
    by_layers = cut_at_layers(model, given | {"attention_mask": short})
    assert [segment.name for segment in by_layers.segments] == [f"{stack}.{i}" for i in range(4)]
    check(by_layers, model, examples, [0, 2])


@pytest.mark.slow(but=["*-torch.bool", "*-padded-torch.int64"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize("lengths", [(6,), (6, 2)], ids=["full", "padded"])
@pytest.mark.parametrize("way", WAYS, ids=lambda w: (w[0] if isinstance(w, tuple) else w).__name__)
def test_what_is_read_crosses_and_is_read_anew(way, lengths, dtype):
    way, extra = way if isinstance(way, tuple) else (way, lambda: None)
    model, x = Masked(way, extra()), torch.randn(ROWS, LENGTH, 4)
    example = (x, mask(*lengths).to(dtype))
    kept = example[1].clone()
    cutting = cut(model, example, stages=2)
    assert torch.equal(example[1], kept)  # also where the model writes to it
    assert [segment.name for segment in cutting.segments[1:5]] == [f"layers.{i}" for i in range(4)]
    for segment in cutting.segments[1:]:
        assert [spec.shape for spec in segment.entry] == [(ROWS, LENGTH, 8), (ROWS, LENGTH)]
        assert all(spec.dtype.is_floating_point for spec in segment.entry)
    masks = [mask(6), mask(6, 2), mask(1, 4, 3), mask(6)]
    for begins in ([0, 1, 2, 3, 4, 5], [0, 2]):
        check(cutting, model, [(x, each.to(dtype)) for each in masks], begins)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (torch.ones(2, 4).long(), [[1, 1, 1, 1], [1, 1, 0, 0]]),
        (torch.ones(1, 1, 1, 3).bool(), [[[[True, False, False]]]]),
        (torch.ones(2, 1), [[1.0], [0.0]]),
        (torch.ones(3).bool(), [True, False, False]),
        (torch.tensor(1), 0),
        (torch.tensor([[1.0, 0.0], [0.0, 0.0]]), [[1.0, 1.0], [1.0, 1.0]]),
        (torch.tensor([5, 3, 4]), [3, 3, 3]),
        (torch.tensor([0.5, -2.0]), [-0.5, 2.0]),
        (torch.ones(0, 3), []),
    ],
)
def test_the_other_example_that_a_cut_is_tried_with(given, wanted):
    """A mask of ones gets padding, another one loses it."""
    kept, same = given.clone(), torch.ones(2)
    (found, left), named = value_dependence.other((given, same), {"alone": "word"}, {0})
    assert found.dtype == given.dtype
    assert found.tolist() == wanted
    assert left is same
    assert named == {"alone": "word"}
    assert torch.equal(given, kept)


def test_an_input_is_carried_no_further_than_it_is_read():
    """An encoder's mask is needed within it; the decoder reads its own one, and both cross where both are."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = Masked(branch), Masked(branch)
            self.between = nn.Linear(3, 4)

        def forward(self, x, mask, other):
            return self.decoder(self.between(self.encoder(x, mask)), other)

    model, x = Both(), torch.randn(ROWS, LENGTH, 4)
    cutting = cut(model, (x, mask(6), mask(6, 2).bool()), stages=2)
    crossing = {segment.name: [spec.dtype for spec in segment.entry] for segment in cutting.segments}
    assert crossing["encoder.layers.1"] == [torch.float32, torch.float64, torch.float16]
    assert crossing["between"] == [torch.float32, torch.float16]  # the decoder's mask, which is yet to be read
    assert crossing["decoder.layers.2"] == [torch.float32, torch.float16]
    check(cutting, model, [(x, mask(6, 1), mask(6).bool()), (x, mask(6), mask(6, 4, 5).bool())])


def test_a_module_that_reads_and_returns_nothing_costs_nothing():
    class Check(nn.Module):
        def forward(self, ids):
            assert ids.max() < 9

    class Checked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.check, self.embed = Check(), nn.Embedding(9, 4)
            self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

        def forward(self, ids):
            self.check(ids)
            return self.layers(self.embed(ids))

    cutting = cut(Checked(), torch.randint(0, 9, (2, 5)), stages=2)
    assert [[spec.shape for spec in segment.entry] for segment in cutting.segments[2:]] == [[(2, 5, 4)]] * 2


def test_another_mask_that_needs_another_module_is_found_when_the_model_is_cut():
    """Before the first layer there is a tensor for padding that only the module makes, or none."""

    class Filled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.filler, self.layers = nn.Linear(4, 4), nn.Linear(1, 4), nn.ModuleList()
            self.layers.extend(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x, mask):
            x = self.embed(x)
            filler = None if mask.all() else self.filler(mask.float().unsqueeze(-1))
            for layer in self.layers:
                x = layer(x if filler is None else x + filler)
            return x

    model, x = Filled(), torch.randn(ROWS, LENGTH, 4)
    for lengths in ((6,), (6, 2)):
        with pytest.raises(UserError, match="which can be cut into 2 at most .*layers.0: "):
            cut(model, (x, mask(*lengths)), stages=3)
        check(cut(model, (x, mask(*lengths)), stages=2), model, [(x, mask(6)), (x, mask(6, 3))])


def test_lengths_that_decide_on_a_shape_are_refused():
    class Short(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

        def forward(self, x, lengths):
            return self.layers(x[:, : lengths.max()])

    with pytest.raises(UserError, match="layers.1: the shape of what crosses depends on the data"):
        cut(Short(), (torch.randn(ROWS, LENGTH, 4), torch.tensor([2, 6, 4])), stages=2)


def test_bytes_and_types_at_the_boundary_are_those_of_the_input():
    model, x = Masked(branch), torch.randn(ROWS, LENGTH, 4)
    cutting = cut(model, (x, mask(6, 2)), stages=2)
    hidden = ROWS * LENGTH * 8
    assert [cost.boundary_bytes for cost in profile(cutting, "cpu")][1:] == [hidden * 4 + ROWS * LENGTH * 8] * 5
    specs = entries(cutting, "cpu", "bf16")
    assert [[spec.dtype for spec in each] for each in specs[2:-1]] == [[torch.bfloat16, torch.float64]] * 4


@pytest.mark.parametrize("recompute", [False, True])
def test_stages_of_a_pipeline_take_turns_over_other_masks(recompute):
    """As a pipeline does it: a forward pass for each microbatch, then the backward passes."""
    model, parts = Masked(branch), [(torch.randn(ROWS, LENGTH, 4), each) for each in (mask(6), mask(6, 2), mask(6))]
    cutting = cut(model, parts[0], stages=2)
    specs = [segment.entry for segment in cutting.segments[2:3]] + [cutting.output]
    stages = [
        Stage(module, output, "cpu", RunOptions(microbatches=3, recompute=recompute))
        for module, output in zip(split_runs.cut_at(cutting, [0, 2]), specs, strict=True)
    ]
    between = []
    for part in parts:
        sent = stages[0](*part)
        between.append((sent, [tensor.detach().requires_grad_() for tensor in sent]))
    ends = [stages[1](*received) for _, received in between]
    for end, (sent, received) in zip(ends, between, strict=True):
        end.square().sum().backward()
        assert torch.count_nonzero(received[1].grad) == 0
        torch.autograd.backward(sent, [tensor.grad for tensor in received])
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    for part in parts:
        model(*part).square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-6, atol=1e-6, msg=name)
