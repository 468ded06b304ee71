"""Scripts for smdistributed.modelparallel with a fault, named by the first argument; each ends with one clear error."""

import os
import sys
import threading

from torch.nn.utils import clip_grad_norm_  # torch's own, since smp is not imported yet

import smdistributed.modelparallel.torch as smp  # isort: skip
import torch
from torch import nn
from torch.nn import functional

what = sys.argv[1]
smp.init()
torch.manual_seed(0)
layers = [nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)]
if what == "no such partition":
    smp.set_partition(layers[2], 2)
if what == "clips apart":
    layers[2] = nn.Linear(8, 8)
    layers.append(nn.Linear(3, 8))
    layers.append(nn.Linear(8, 3))
    layers[-1].weight = layers[4].weight
    smp.set_partition(nn.Sequential(*layers[:5]), 0)
    smp.set_partition(nn.Sequential(*layers[5:]), 1)
if what == "shared norm":  # each stage would have statistics of its own
    layers = [nn.BatchNorm1d(6), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)]
    layers.append(layers[0])


class Looking(nn.Sequential):
    """Looks at what other layers have computed before its own first layer."""

    def forward(self, inputs):
        if inputs.isnan().any():
            raise ValueError("not a number")
        return super().forward(inputs)


class Scaled(nn.Sequential):
    def forward(self, inputs, count=99):
        for layer in list(self)[:count]:
            inputs = layer(inputs)
        return inputs


if what == "looks":
    wide = [nn.Linear(*widths) for widths in [(8, 65536), (65536, 8)] * 3]
    layers[1:4] = [Looking(nn.Linear(8, 8), *wide)]
model = smp.DistributedModel(Scaled(*layers))
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
if what == "second model":
    smp.DistributedModel(nn.Linear(2, 2))
if what == "outside":
    model(torch.zeros(4, 6))


@smp.step
def train_step(model, inputs, labels, own=None):
    if what == "no call":
        return inputs
    output = model(inputs)
    if what == "two calls":
        output = output + model(inputs)
    loss = own[0](output, labels) if own else functional.cross_entropy(output, labels)
    if what == "broken loss":
        raise RuntimeError("a loss that the script cannot compute")
    if what == "not a number":
        loss = functional.cross_entropy(output, labels, reduction="none")
    if what == "loss.backward":
        loss.backward()
    if (what == "no backward" and steps > 1) or (what == "backward" and steps == 1):
        return loss
    model.backward(loss)
    if what == "two backward":
        model.backward(loss)
    return loss


@smp.step
def test_step(model, inputs, labels):
    output = model(inputs, count=1) if what == "other units" else model(inputs)
    return functional.cross_entropy(output, labels)


batch = (torch.randn(8, 6), torch.randint(0, 3, (8,)))
if what == "batch":
    batch = tuple(each[:7] for each in batch)
own, weight = None, torch.ones(3)
if what == "lambda":  # the last rank uses its own
    own = (lambda output, labels: functional.cross_entropy(output, labels) + smp.rank(), threading.Lock())
if what == "lambda with a tensor":
    own = ((lambda kept: lambda output, labels: functional.cross_entropy(output, labels, kept))(weight),)
steps = 1
loss = train_step(model, *batch, own=own).reduce_mean()
if what in ("no backward", "backward"):
    steps = 2
    train_step(model, *batch)
if what == "lambda of one rank":
    own = (lambda output, labels: functional.cross_entropy(output, labels), threading.Lock())
    train_step(model, *batch, **({"own": own} if smp.rank() == 0 else {}))
if what == "lambda":
    train_step(model, *batch, own=own)
    print("loss", loss.item() - functional.cross_entropy(nn.Sequential(*layers)(batch[0]), batch[1]).item())
if what == "clips apart":
    clip_grad_norm_(model.parameters(), 0.01)
optimizer.step()
if what == "clips apart":
    train_step(model, *batch)
if what == "other length":
    train_step(model, batch[0][:, :5], batch[1])
if what == "other units":
    model.eval()
    test_step(model, *batch)
if what == "state on rank 0" and smp.rank() == 0:
    model.state_dict()
if what == "module":
    model.module.state_dict()
if what == "rank 0 evaluates":
    model.eval()
    with torch.no_grad():
        if smp.rank() == 0:
            test_step(model, *batch)
    then = os.environ.get("THEN")
    if then == "train":
        model.train()
        train_step(model, *batch)
    elif then == "barrier":
        smp.mp_barrier()
    elif then == "barrier of all":
        smp.barrier()
    elif then == "state":
        model.state_dict()
print("came to the end")
