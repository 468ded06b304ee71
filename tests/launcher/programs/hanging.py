"""Trains with DDP until a rank sleeps or is frozen: `hanging.py RANK sleep|freeze`; in a second attempt nothing does."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    if step == 7 and rank == int(sys.argv[1]) and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if sys.argv[2] == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(1000)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
print("trained", flush=True)
dist.destroy_process_group()
os._exit(0)  # an interpreter's end can take longer on a busy machine than the limit of the test
