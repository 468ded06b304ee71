"""A script for GPUs: device, module and batch are moved, DistributedDataParallel is told where."""

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch
import torch.distributed as dist
from smdistributed.dataparallel.torch.distributed import get_local_rank
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group(backend="smddp")
local = get_local_rank()
torch.cuda.set_device(local)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(3, 1).cuda(local), device_ids=[local], output_device=local)
model(torch.full((2, 3), float(dist.get_rank())).to("cuda", non_blocking=True)).sum().backward()
grad = next(model.parameters()).grad[0].tolist()
print(f"device {torch.cuda.current_device()} grad {grad}", flush=True)
dist.barrier()
dist.destroy_process_group()
