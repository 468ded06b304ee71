"""A step function that changes its arguments in place, beside the same function without the library.

Argument `model`: the model changes its argument itself; `later`: the function does so from its second step on; `options`:
the script changes an object that it gives the model in every step; `shared`: the function counts its calls in a tensor
that all microbatches share, and gives it to the model; `views`: two arguments share columns of one tensor.
"""

import argparse
import copy
import sys

import torch
from torch import nn

import smdistributed.modelparallel.torch as smp
from tests.compat.programs.smp_both import refused
from tests.compat.smp_runs import say

torch.set_num_threads(1)
what = sys.argv[1]
MICROBATCHES = 2


class Halves(nn.Module):
    """Changes its argument in place."""

    def forward(self, x):
        return x.mul_(0.5)


class Scales(nn.Sequential):
    """Takes an object beside its batch, and reads it before its last layer."""

    def forward(self, x, options):
        return self[2](self[1](self[0](x)) * options.scale)


class Counts(Scales):
    """Takes a count beside its batch."""

    def forward(self, x, count):
        return self[2](self[1](self[0](x)) * count)


smp.init()
torch.manual_seed(0)
layers = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)]
plain = nn.Sequential(*([Halves()] if what == "model" else []), *layers)
if what == "options":
    plain = Scales(*layers)
if what == "shared":
    plain = Counts(*layers)
model = smp.DistributedModel(copy.deepcopy(plain))
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))
reference = torch.optim.SGD(plain.parameters(), lr=0.5)
steps, shared = 0, argparse.Namespace(scale=1.0)


def loss_of(model, rows, extra):
    if what == "options":
        return (model(rows, shared) - extra["targets"]).square().mean()
    if what == "shared":
        extra["calls"].add_(1)
        return (model(rows, extra["calls"]) - extra["targets"]).square().mean()
    if what == "model":
        return (model(rows) - extra["targets"]).square().mean()
    targets = extra.pop("targets")
    if what in ("function", "views") or steps > 1:
        rows.mul_(0.5)
        targets.add_(1)
    output = model(rows)
    if what == "function":
        targets.sub_(0.25)
    return (output - targets).square().mean() + rows.square().mean()


@smp.step
def train_step(model, rows, extra):
    loss = loss_of(model, rows, extra)
    model.backward(loss)
    return loss


def batch(number):
    generator = torch.Generator().manual_seed(number)
    extra = {"targets": torch.randn(8, 3, generator=generator), "name": "a", "calls": torch.tensor(0.5)}
    rows = torch.randn(8, 7, generator=generator)
    if what == "views":
        extra["targets"] = rows[:, 4:]
    return rows[:, :6], extra


losses, kept, said = [], [], ""
for number in range(1 if what == "later" else 3):
    rows, extra = batch(number)
    steps += 1
    shared.scale = 1.0 + number
    optimizer.zero_grad()
    losses.append(train_step(model, rows, extra).reduce_mean().item())
    optimizer.step()
    before, extra_before = batch(number)
    kept.append(
        torch.equal(rows, before) and all(torch.equal(extra[key], extra_before[key]) for key in ("targets", "calls"))
    )
    reference.zero_grad()
    rows, extra = batch(number)
    for one, other in zip(rows.chunk(MICROBATCHES), extra["targets"].chunk(MICROBATCHES), strict=True):
        wanted = loss_of(plain, one, extra | {"targets": other}) / MICROBATCHES
        wanted.backward()
        losses[-1] -= wanted.item()
    reference.step()
if what == "later":
    steps += 1
    said = refused(train_step, model, *batch(1))
say({"losses": max(map(abs, losses)), "kept": kept, "said": said})
