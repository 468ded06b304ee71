"""Data parallel training as torchrun's users write it; `--backend smddp` as users of SageMaker's library do."""

import argparse
import os

import facts
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--backend", default="gloo")
arguments = parser.parse_args()

if arguments.backend == "smddp":
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  registers the backend
dist.init_process_group(arguments.backend)
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(arguments.epochs):
    loss = model(torch.full((2, 4), float(rank))).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
total = torch.tensor(float(rank + 1))
dist.all_reduce(total)
weight = model.module.weight.detach().clone()
least, most = weight.clone(), weight.clone()
dist.all_reduce(least, dist.ReduceOp.MIN)
dist.all_reduce(most, dist.ReduceOp.MAX)
assert torch.equal(least, most), "the ranks hold different weights"
facts.write(
    rank,
    world_size=world_size,
    total=total.item(),
    local_rank=int(os.environ["LOCAL_RANK"]),
    backend=dist.get_backend(),
)
if rank == 0:
    facts.save_model(total=total.item(), weight=weight.tolist())
dist.destroy_process_group()
print(f"rank {rank} of {world_size} done")
facts.leave()
