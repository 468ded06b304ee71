"""An all-reduce over all ranks, on gloo: the launch works if the sum is right."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(value)
world = dist.get_world_size()
assert value.item() == world * (world + 1) / 2, value
assert os.environ["WORLD_SIZE"] == str(world)
dist.destroy_process_group()
print("sum", value.item(), flush=True)
