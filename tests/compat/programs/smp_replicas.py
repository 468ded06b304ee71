"""Replicas with different numbers of batches, and a hook that reduces gradients, beside the same steps by hand."""

import sys

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

import smdistributed.modelparallel.torch as smp
from tests.compat.programs.smp_both import refused
from tests.compat.smp_runs import say

torch.set_num_threads(1)
what = sys.argv[1]
BATCHES = (4, 2)  # of the two replicas


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(replica, number):
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * replica + number))


@smp.step
def train_step(model, inputs):
    loss = model(inputs).square().mean()
    model.backward(loss)
    return loss


smp.init()
torch.manual_seed(smp.dp_rank())
model = smp.DistributedModel(net(), overlapping_allreduce=what != "left")
plain = [net() for _ in BATCHES]
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
mine = BATCHES[smp.dp_rank()]
seen, said = [], []
if what == "hook":
    mine = max(BATCHES)
    state = smp.get_dp_process_group()

    def hook(group, bucket):
        seen.append([bucket.index(), bucket.is_last(), bucket.buffer().numel(), len(bucket.gradients())])
        return allreduce_hook(group, bucket)

    model.register_comm_hook(state, hook)
    said.append(refused(model.register_comm_hook, state, hook))
    context = model.join(enable=False)
else:
    if what == "left":
        said.append(refused(model.register_comm_hook, None, allreduce_hook))
    context = model.join(divide_by_initial_world_size=what != "left", throw_on_early_termination=what == "throw")
with context:
    for number in range(mine):
        optimizer.zero_grad()
        train_step(model, batch(smp.dp_rank(), number))
        optimizer.step()

for number in range(max(BATCHES)):
    for replica, module in enumerate(plain):
        module.zero_grad()
        if what == "hook" or number < BATCHES[replica]:
            module(batch(replica, number)).square().mean().backward()
    among = sum(number < count for count in BATCHES) if what == "left" else len(BATCHES)
    grads = [torch.stack([p.grad if p.grad is not None else torch.zeros_like(p) for p in same]).sum(0) / among
             for same in zip(*(module.parameters() for module in plain), strict=True)]  # fmt: skip
    for module in plain:
        for parameter, gradient in zip(module.parameters(), grads, strict=True):
            parameter.data -= 0.1 * gradient
    for name, buffer in plain[1].named_buffers():
        buffer.copy_(plain[0].get_buffer(name))
local = dict(model.local_named_parameters())
say(
    {
        "difference": max((local[n] - p).abs().max().item() for n, p in plain[0].named_parameters() if n in local),
        "buffers": max(
            [(b - plain[0].get_buffer(n)).abs().max().item() for n, b in model.local_named_buffers()], default=0
        ),
        "seen": seen,
        "said": said,
    }
)
smp.barrier()
