"""One process per host that finds its place from SM_HOSTS, as scripts without any distribution do."""

import argparse
import json
import os

import facts
import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--lr", type=float, default=0.1)
arguments = parser.parse_args()

hosts = json.loads(os.environ["SM_HOSTS"])
rank = hosts.index(os.environ["SM_CURRENT_HOST"])
dist.init_process_group("gloo", init_method=f"tcp://{hosts[0]}:23456", rank=rank, world_size=len(hosts))
total = torch.tensor(float(rank + 1))
for _ in range(arguments.epochs):
    total.fill_(rank + 1)
    dist.all_reduce(total)
facts.write(rank, world_size=len(hosts), total=total.item(), environ_world=os.environ.get("WORLD_SIZE"))
if rank == 0:
    facts.save_model(total=total.item(), lr=arguments.lr)
dist.destroy_process_group()
print(f"rank {rank} of {len(hosts)} done")
facts.leave()
