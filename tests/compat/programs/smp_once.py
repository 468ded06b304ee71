"""Counts the passes of every layer on this rank while the library cuts the model, at first and for another form, and
writes down the messages of its steps."""

import torch
from torch import nn

import smdistributed.modelparallel.torch as smp
from algorun_train.ranks import object_channel, packing
from tests.compat.smp_runs import say
from tests.train.parallel.one_queue import listened

LAYERS = 4
packing.SMALL = object_channel.TOGETHER = 0  # every tensor travels by itself, as a large one on a GPU does
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
    with smp.partition(number * smp.pp_size() // LAYERS):
        layers.append(Layer(number))
model = smp.DistributedModel(nn.Sequential(*layers))
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))


@smp.step
def train_step(model, rows, targets):
    loss = (model(rows) - targets).square().mean()
    model.backward(loss)
    return loss


@smp.step
def test_step(model, rows):
    return model(rows)


counts = []
with listened(moves=True) as queue:
    for length in (3, 5):  # the second one is another form
        before = list(passes)
        rows = torch.ones(4, length, 8)
        train_step(model, rows, torch.zeros_like(rows))
        optimizer.step()
        optimizer.zero_grad()
        counts.append([now - then for now, then in zip(passes, before, strict=True)])
        with torch.no_grad():
            test_step(model, rows)
mine = sorted(name for name, _ in model.local_named_parameters())
say({"counts": counts, "mine": mine, "queue": queue})
