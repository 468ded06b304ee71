"""A script for GPUs: device, module and batch are moved, DistributedDataParallel is told where, FSDP by a mesh."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
from smdistributed.dataparallel.torch.distributed import get_local_rank

dist.init_process_group(backend="smddp")
local = get_local_rank()
torch.cuda.set_device(local)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(3, 1).cuda(local), device_ids=[local], output_device=local)
model(torch.full((2, 3), float(dist.get_rank())).to("cuda", non_blocking=True)).sum().backward()
grad = next(model.parameters()).grad[0].tolist()
sharded = torch.nn.Linear(3, 1, device="cuda")
fully_shard(sharded, mesh=init_device_mesh("cuda", (dist.get_world_size(),)))
sharded(torch.full((2, 3), float(dist.get_rank()), device=torch.device("cuda", local))).sum().backward()
whole = sharded.weight.grad.full_tensor()[0].tolist()
print(f"device {torch.cuda.current_device()} grad {grad} sharded {whole}", flush=True)
dist.barrier()
dist.destroy_process_group()
