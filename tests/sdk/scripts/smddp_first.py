"""SageMaker's data parallel library by its first interface, which many older scripts still use."""

import facts
import torch

import smdistributed.dataparallel.torch.distributed as dist
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel

dist.init_process_group()
rank, world_size = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(torch.nn.Linear(4, 1))
model(torch.ones(2, 4)).mean().backward()
total = torch.tensor(float(rank + 1))
dist.all_reduce(total)
facts.write(rank, world_size=world_size, total=total.item(), local_rank=dist.get_local_rank())
if rank == 0:
    facts.save_model(total=total.item())
print(f"rank {rank} of {world_size} done")
facts.leave()
