"""Scripts for smdistributed.modelparallel with a fault, named by the first argument; each ends with one clear error."""

import os
import sys

import smdistributed.modelparallel.torch as smp
import torch
from torch import nn
from torch.nn import functional

what = sys.argv[1]
smp.init()
torch.manual_seed(0)
layers = [nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)]
if what == "gap":
    for index, layer in enumerate(layers):
        smp.set_partition(layer, 1 if index == 2 else 0)
if what == "last batch":
    layers[1] = nn.BatchNorm1d(8)  # samples that fill up a batch would change its statistics
if what == "mean of the batch":
    layers.append(type("Mean", (nn.Module,), {"forward": lambda self, x: x - x.mean(0)})())
model = smp.DistributedModel(nn.Sequential(*layers))
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
if what == "second model":
    smp.DistributedModel(nn.Linear(2, 2))
if what == "outside":
    model(torch.zeros(4, 6))


@smp.step
def train_step(model, inputs, labels):
    if what == "no call":
        return inputs
    output = model(inputs)
    if what == "two calls":
        output = output + model(inputs)
    loss = functional.cross_entropy(output, labels)
    if what == "not a number":
        loss = functional.cross_entropy(output, labels, reduction="none")
    model.backward(loss)
    if what == "two backward":
        model.backward(loss)
    return loss


@smp.step
def test_step(model, inputs, labels):
    return functional.cross_entropy(model(inputs), labels)


batch = (torch.randn(8, 6), torch.randint(0, 3, (8,)))
if what == "batch":
    batch = tuple(each[:7] for each in batch)
loss = train_step(model, *batch).reduce_mean()
optimizer.step()
if what in ("last batch", "mean of the batch"):
    train_step(model, *(each[:4] for each in batch))
if what == "state on rank 0" and smp.rank() == 0:
    model.state_dict()
if what == "module":
    model.module.state_dict()
if what == "rank 0 evaluates":
    model.eval()
    with torch.no_grad():
        if smp.rank() == 0:
            test_step(model, *batch)
    if os.environ.get("THEN") == "train":
        model.train()
        train_step(model, *batch)
print("came to the end")
