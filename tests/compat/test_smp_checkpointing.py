"""Activation checkpointing with one partition, in a process without a launcher, which is a job of one.

With two partitions: test_smp_steps.py, `checkpointing`.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import smdistributed.modelparallel.torch as smp
from algorun_train.common.errors import UserError

pytestmark = pytest.mark.usefixtures("alone")


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.calls = nn.Linear(4, 4), 0

    def forward(self, x):
        self.calls += 1
        return torch.tanh(self.inner(x))


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList(Counting() for _ in range(2)), Counting()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@smp.step
def train_step(model, rows):
    model.backward(model(rows).square().mean())


def calls_of_a_step(model, module):
    train_step(model, torch.ones(2, 4))
    return [layer.calls for layer in (*module.layers, module.head)]


def test_layers_are_recomputed_when_it_is_called_before_the_model_is_wrapped():
    module = Stack()
    smp.set_activation_checkpointing(module.layers)
    assert calls_of_a_step(smp.DistributedModel(module), module) == [2, 2, 1]


def test_layers_are_recomputed_when_it_is_called_after_the_model_is_wrapped():
    module = Stack()
    model = smp.DistributedModel(module)
    smp.set_activation_checkpointing(model.get_module().layers)
    smp.set_activation_checkpointing(model.module.layers)  # a second time changes nothing
    assert calls_of_a_step(model, module) == [2, 2, 1]


@pytest.mark.parametrize("whole", [lambda model: model, lambda model: model.module])
def test_the_wrapped_model_itself_is_the_scripts_module(whole):
    module = Stack()
    model = smp.DistributedModel(module)
    smp.set_activation_checkpointing(whole(model))
    assert calls_of_a_step(model, module) == [2, 2, 2]
    assert not any(name.startswith("module.module.") for name in model.state_dict())


class Asking(Stack):
    """Asks for it in its forward; its last layers take and return a tuple."""

    def __init__(self):
        super().__init__()
        self.tail = nn.Sequential(Pairs(), Pairs())

    def forward(self, x):
        x = smp.checkpoint(self.head, x, preserve_rng_state=False)
        x = smp.checkpoint_sequential(nn.Sequential(*self.layers), x, strategy="contiguous")
        return torch.cat(smp.checkpoint_sequential(self.tail, (x, x + 1), pack_args_as_tuple=True))


class Pairs(Counting):
    def forward(self, pair):
        one, two = pair
        return two, super().forward(one)


def test_layers_are_recomputed_where_the_forward_asks_for_it():
    module = Asking()
    plain = copy.deepcopy(module)
    model = smp.DistributedModel(module)
    assert calls_of_a_step(model, module) == [2, 2, 2]
    assert [layer.calls for layer in module.tail] == [2, 2]
    x = plain.layers[1](plain.layers[0](plain.head(torch.ones(2, 4))))
    torch.cat(plain.tail[1](plain.tail[0]((x, x + 1)))).square().mean().backward()
    for mine, expected in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, expected.grad)


def test_without_gradients_nothing_is_recomputed():
    module = Asking()
    smp.DistributedModel(module)
    with torch.no_grad():
        module(torch.ones(2, 4))
    assert [layer.calls for layer in (*module.layers, module.head, *module.tail)] == [1] * 5


LAYERS = nn.Sequential(nn.Linear(2, 2))
REFUSED = [
    (smp.set_activation_checkpointing, (torch.tanh,), {},
     "set_activation_checkpointing: builtin_function_or_method; allowed: an nn.Module; fix: give a module"),
    (smp.set_activation_checkpointing, (LAYERS,), {"strategy": "group_x"},
     "checkpointing: strategy 'group_x'; allowed: each, contiguous, group_N; fix: use one of them"),
    (smp.checkpoint, (torch.tanh, torch.ones(2)), {},
     "smp.checkpoint: builtin_function_or_method; allowed: an nn.Module, not a function; fix: put it into a module"),
    (smp.checkpoint_sequential, (nn.ModuleList(LAYERS), torch.ones(2)), {},
     "smp.checkpoint_sequential: ModuleList; allowed: nn.Sequential; fix: smp.checkpoint"),
    (smp.checkpoint_sequential, (LAYERS, torch.ones(2)), {"strategy": "all"},
     "checkpointing: strategy 'all'; allowed: each, contiguous, group_N; fix: use one of them"),
    (smp.checkpoint_sequential, (LAYERS, (torch.ones(2), torch.ones(2))), {},
     "smp.checkpoint_sequential: a tuple of inputs; fix: pack_args_as_tuple=True"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "args", "options", "said"), REFUSED)
def test_what_cannot_be_recomputed_is_refused(call, args, options, said):
    with pytest.raises(UserError) as caught:
        call(*args, **options)
    assert str(caught.value) == said
