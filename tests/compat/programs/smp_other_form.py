"""Calls its model with a second form of arguments. `slow`: rank 0's search for it takes longer than a collective may;
`other model`: rank 1's model has another layer by then, so it cannot be cut as rank 0's.
"""

import sys
import time

import torch
from torch import nn

import smdistributed.modelparallel.torch as smp
from tests.compat.smp_runs import say, staged_model
from tests.train import short_collectives

COLLECTIVE_S, SEARCH_S = 3, 4
(what,) = sys.argv[1:]
searched = []


class Layer(nn.Linear):
    def forward(self, x):
        if what == "slow" and x.shape[1] == 5 and smp.rank() == 0 and not x.is_meta and not searched:
            searched.append(True)
            time.sleep(SEARCH_S)
        return super().forward(x).tanh()


short_collectives.meet(COLLECTIVE_S)
smp.init()
torch.manual_seed(0)
model = smp.DistributedModel(nn.Sequential(*(Layer(8, 8) for _ in range(4))))
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))


@smp.step
def train_step(model, rows):
    loss = model(rows).square().mean()
    model.backward(loss)
    return loss


train_step(model, torch.ones(4, 3, 8))
if what == "other model" and smp.rank() == 1:
    model.module.append(Layer(8, 8))
try:
    train_step(model, torch.ones(4, 5, 8))
except Exception as error:
    say(f"{type(error).__name__}: {error}")
else:
    say(staged_model(model).signatures.total)
