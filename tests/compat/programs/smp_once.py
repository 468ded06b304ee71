"""Counts the passes of every layer on this rank while the library cuts the model, at first and for another form."""

import smdistributed.modelparallel.torch as smp
import torch
from torch import nn

from tests.compat.smp_runs import say

LAYERS = 4
passes = [0] * LAYERS


class Layer(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number, self.inner = number, nn.Linear(8, 8)

    def forward(self, x):
        passes[self.number] += not x.is_meta
        return torch.tanh(self.inner(x))


smp.init()
torch.manual_seed(0)
layers = []
for number in range(LAYERS):
    with smp.partition(number * 2 // LAYERS):
        layers.append(Layer(number))
model = smp.DistributedModel(nn.Sequential(*layers))
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))


@smp.step
def train_step(model, rows):
    loss = model(rows).square().mean()
    model.backward(loss)
    return loss


counts = []
for length in (3, 5):  # the second one is another form
    before = list(passes)
    train_step(model, torch.ones(4, length, 8))
    optimizer.step()
    optimizer.zero_grad()
    counts.append([now - then for now, then in zip(passes, before, strict=True)])
say({"counts": counts, "pp_rank": smp.pp_rank(), "mine": sorted(name for name, _ in model.local_named_parameters())})
