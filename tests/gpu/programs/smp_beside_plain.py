"""A model under smdistributed.modelparallel beside the same model without it, on one device and one partition.

The argument is the type to compute in. Prints the largest distance of a weight from the plain model's after some steps.
"""

import contextlib
import sys

import torch
from torch import nn
from torch.nn import functional

import smdistributed.modelparallel.torch as smp

BATCH, STEPS, MICROBATCHES, WIDTH = 64, 10, 2, 256
SCALE = 1024.0  # of the loss, as GradScaler multiplies it

smp.init({"partitions": 1, "microbatches": MICROBATCHES, "ddp": True})
DEVICE = torch.device("cuda", smp.local_rank()) if torch.cuda.is_available() else torch.device("cpu")


def net():
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, 4 * WIDTH), nn.LayerNorm(4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, 10)]
    return nn.Sequential(*layers).to(DEVICE)


def autocast():
    return contextlib.nullcontext() if name == "float32" else torch.autocast(DEVICE.type, getattr(torch, name))


@smp.step
def train_step(model, inputs, labels):
    with autocast():
        output = model(inputs)
    loss = functional.cross_entropy(output.float(), labels) * SCALE
    model.backward(loss)
    return loss


def batch(generator):
    inputs = torch.randn(BATCH, WIDTH, generator=generator)
    return inputs.to(DEVICE), torch.randint(0, 10, (BATCH,), generator=generator).to(DEVICE)


name = sys.argv[1]
plain, model = net(), smp.DistributedModel(net())
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1 / SCALE))
reference = torch.optim.SGD(plain.parameters(), lr=0.1 / SCALE)
generator = torch.Generator().manual_seed(1)
for _ in range(STEPS):
    inputs, labels = batch(generator)
    optimizer.zero_grad()
    train_step(model, inputs, labels)
    optimizer.step()
    reference.zero_grad()
    for part, target in zip(inputs.chunk(MICROBATCHES), labels.chunk(MICROBATCHES), strict=True):
        with autocast():
            output = plain(part)
        (functional.cross_entropy(output.float(), target) * SCALE / MICROBATCHES).backward()
    reference.step()
trained = model.state_dict()
pairs = zip(plain.parameters(), net().parameters(), strict=True)
assert max((value - start).abs().max().item() for value, start in pairs) > 1e-3, "nothing was trained"
assert all(value.device.type == DEVICE.type for value in model.parameters())
distance = max((trained[key].to(DEVICE) - value).abs().max().item() for key, value in plain.named_parameters())
print(f"distance {distance:.3e} on {DEVICE.type}", flush=True)
