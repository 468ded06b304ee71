"""Trains with DDP until a rank sleeps: `hanging.py RANK`."""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    if step == 7 and rank == int(sys.argv[1]):
        time.sleep(1000)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
print("trained", flush=True)
dist.destroy_process_group()
os._exit(0)  # an interpreter's end can take longer on a busy machine than the limit of the test
