"""DistributedDataParallel over AWS's library, as its documentation has scripts changed: an import and a backend's name."""

import argparse
import json
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()

dist.init_process_group(backend="smddp")
rank, size, local_rank = dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"])
device = torch.device("cpu")
if torch.cuda.is_available():
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
batch_size = max(args.batch_size // size, 1)  # the batch is that of all ranks together

data = TensorDataset(torch.arange(8.0).reshape(8, 1), 3 * torch.arange(8.0).reshape(8, 1))
sampler = DistributedSampler(data, num_replicas=size, rank=rank, shuffle=False)
loader = DataLoader(data, batch_size=batch_size, sampler=sampler)
net = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.constant_(net.weight, float(rank))  # DDP takes rank 0's
model = DDP(net.to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
steps = 0
for features, target in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(features.to(device)), target.to(device)).backward()
    optimizer.step()
    steps += 1
says = {"rank": rank, "size": size, "local_rank": local_rank, "steps": steps, "weight": net.weight.item()}
print("smddp", json.dumps(says), flush=True)
dist.barrier()
dist.destroy_process_group()
