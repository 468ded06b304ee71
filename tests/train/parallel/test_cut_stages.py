"""Stages after the cut: weights, microbatches in turn, recomputation, autocast, gradients, another order of calls."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from algorun_train.parallel.cut.any_module import cut
from tests.train import split_runs
from tests.train.parallel import model_zoo
from tests.train.parallel.cut_checks import Sums, check, linears, names


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_weights_loaded_into_a_stage_are_the_models():
    model = model_zoo.Glued()
    stage = cut(model, torch.randn(2, 8, 6), stages=2).stage(1, 3)
    stage.load_state_dict({name: torch.full_like(value, 0.5) for name, value in stage.state_dict().items()})
    assert model.blocks[0].up.weight.mean().item() == 0.5
    with pytest.raises(RuntimeError, match="Missing key"):
        stage.load_state_dict({})


def test_several_stages_of_one_process_take_turns_over_microbatches():
    model = model_zoo.Glued()
    cutting = cut(model, torch.randn(2, 8, 6), stages=4)
    stages = split_runs.cut_at(cutting, [0, 1, 3, 4])
    batches = [torch.randn(2, 8, 6) for _ in range(3)]
    for stage in stages:
        stage.eval()
    model.eval()
    model.zero_grad()
    sum(model(batch).square().sum() for batch in batches).backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    kept = {}
    values = dict(enumerate(batches))
    for number, stage in enumerate(stages):  # all microbatches through a stage before the next stage's turn
        for turn in range(3):
            entry = values[turn].detach().requires_grad_(number > 0)
            values[turn] = stage(entry)
            kept[number, turn] = entry, values[turn]
    for turn in (1, 2, 0):
        gradient = None
        for number in reversed(range(4)):
            entry, output = kept[number, turn]
            (output.square().sum() if gradient is None else output).backward(gradient)
            gradient = entry.grad
    for name, parameter in model.named_parameters():
        if name in expected:
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("where", ["around a stage", "within the model"])
def test_activation_checkpointing(where):
    model, example = model_zoo.Glued(), torch.randn(2, 8, 6)
    expected = split_runs.whole(model, example)
    if where == "within the model":

        class Checkpointed(model_zoo.Glued):
            def forward(self, x):
                x = self.embed(x)
                x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
                for block in self.blocks:
                    x = checkpoint(block, x, use_reentrant=False)
                return self.head(x.mean(dim=1) * self.scale)

        same = Checkpointed()
        same.load_state_dict(model.state_dict())
        model = same
    cutting = cut(model, example, stages=2)
    stages = split_runs.cut_at(cutting, [0, 2, 4])
    if where == "around a stage":
        stages = [lambda *args, stage=stage: checkpoint(stage, *args, use_reentrant=False) for stage in stages]
    split_runs.assert_equal(expected, split_runs.split(stages, model, [example]))


def test_autocast_decides_what_crosses():
    model, example = (
        nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 4)),
        torch.randn(3, 4),
    )
    with torch.autocast("cpu", torch.bfloat16):
        cutting = cut(model, example, stages=4)
        received = example
        for number, segment in enumerate(cutting.segments):
            assert [received.dtype] == [spec.dtype for spec in segment.entry]
            received = cutting.stage(number, number + 1)(received)
        assert torch.equal(received, model(example))
    assert [segment.entry[0].dtype for segment in cutting.segments][1] == torch.bfloat16
    assert cutting.output[0].dtype == torch.bfloat16


def test_frozen_weights_do_not_stop_the_gradients_behind_them():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    check(model, torch.randn(3, 4), stages=4)


def test_a_stage_that_is_entered_in_another_order_says_so():
    def order(s, x):
        return s.c(s.b(s.a(x))) if s.a.training else s.c(s.a(x))

    model = Sums(order, **linears("a", "b", "c"))
    cutting = cut(model, torch.randn(2, 4), stages=2)
    assert names(cutting) == ["a", "c"]
    assert "unit b was not reached" in cutting.refused["b"]
