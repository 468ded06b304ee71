"""Trains under one autocast and evaluates under another, beside the same model without the library.

Arguments: the type to train in and the type to evaluate in (bfloat16, or float32: without autocast); `first` evaluates
before training as well; `mixed` trains every other step in the other type.
"""

import contextlib
import sys

import torch
from torch import nn
from torch.nn import functional

import smdistributed.modelparallel.torch as smp
from tests.compat.smp_runs import say

BATCH, STEPS, MICROBATCHES = 8, 4, 2


class Net(nn.Module):
    """What crosses between its parts depends on autocast: bfloat16 out of a linear layer, float32 out of a norm."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(12, 16), nn.LayerNorm(16), nn.Linear(16, 16)
        self.third, self.last = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        hidden = self.second(self.norm(functional.gelu(self.first(x))))
        return self.last(functional.gelu(self.third(hidden)) + hidden)


def precision(name):
    return torch.autocast("cpu", torch.bfloat16) if name == "bfloat16" else contextlib.nullcontext()


trained, evaluated, *words = sys.argv[1:]
smp.init()
torch.manual_seed(0)
plain = Net()
torch.manual_seed(0)
model = smp.DistributedModel(Net())
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
reference = torch.optim.SGD(plain.parameters(), lr=0.1)


@smp.step
def train_step(model, inputs, labels, name):
    with precision(name):
        output = model(inputs)
    loss = functional.cross_entropy(output.float(), labels)
    model.backward(loss)
    return loss


@smp.step
def test_step(model, inputs):
    with precision(evaluated):
        return model(inputs)


def difference():
    """Of the outputs of an evaluation, in two pieces, from those of the plain model. Their types are the same."""
    inputs = torch.randn(2 * BATCH, 12, generator=torch.Generator().manual_seed(7))
    model.eval()
    plain.eval()
    with torch.no_grad():
        found = test_step(model, inputs).concat()
        with precision(evaluated):
            wanted = torch.cat([plain(part) for part in inputs.chunk(2 * MICROBATCHES)])
    model.train()
    plain.train()
    assert found.dtype == wanted.dtype == getattr(torch, evaluated)
    return (found - wanted).abs().max().item()


differences = [difference()] if "first" in words else []
generator = torch.Generator().manual_seed(1)
for number in range(STEPS):
    inputs, labels = torch.randn(BATCH, 12, generator=generator), torch.randint(0, 4, (BATCH,), generator=generator)
    optimizer.zero_grad()
    name = evaluated if "mixed" in words and number % 2 else trained
    loss = train_step(model, inputs, labels, name)
    optimizer.step()
    reference.zero_grad()
    for part, target in zip(inputs.chunk(MICROBATCHES), labels.chunk(MICROBATCHES), strict=True):
        with precision(name):
            output = plain(part)
        (functional.cross_entropy(output.float(), target) / MICROBATCHES).backward()
    reference.step()
    differences.append(difference())
assert smp.pp_size() == 1 or len(list(model.local_parameters())) < len(list(plain.parameters()))
state = model.state_dict()
parameters = max((state[name] - value).abs().max().item() for name, value in plain.named_parameters())
say({"evaluation": max(differences), "parameters": parameters, "trained": loss.reduce_mean().item()})
