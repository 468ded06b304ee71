"""The library's first interface, as its documentation shows it."""

import torch

import smdistributed.dataparallel.torch.distributed as dist
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP

dist.init_process_group()
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value, op=dist.ReduceOp.SUM)
torch.manual_seed(0)
model = DDP(torch.nn.Linear(3, 1))
model(torch.full((2, 3), float(dist.get_rank()))).sum().backward()
grad = next(model.parameters()).grad[0].tolist()
print(f"local {dist.get_local_rank()} of {dist.get_world_size()} sum {value.item()} grad {grad}", flush=True)
dist.barrier()
