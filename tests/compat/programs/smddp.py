"""As AWS's documentation writes it: the module is imported for its backend, everything else is torch."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401

dist.init_process_group(backend="smddp")
rank, size = dist.get_rank(), dist.get_world_size()
value = torch.tensor([float(rank + 1)])
dist.all_reduce(value)
parts = [torch.zeros(1) for _ in range(size)]
dist.all_gather(parts, torch.tensor([float(rank)]))
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(3, 1))
model(torch.full((2, 3), float(rank))).sum().backward()
grad = next(model.parameters()).grad
print(f"{dist.get_backend()} sum {value.item()} parts {[p.item() for p in parts]} grad {grad[0].tolist()}", flush=True)
dist.barrier()
dist.destroy_process_group()
