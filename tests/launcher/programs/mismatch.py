"""Trains in four ranks until rank 2 calls another collective than the others: `mismatch.py missing|order|shape|subgroup`.

A number of seconds behind it is the limit of each call.
"""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=float(sys.argv[2])) if sys.argv[2:] else None)
kind, rank = sys.argv[1], dist.get_rank()
subgroup = dist.new_group([2, 3])
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)


def exchange(odd: bool) -> None:
    if odd and kind == "order":
        dist.broadcast(torch.ones(3), 0)
    if odd and kind == "shape":
        dist.all_reduce(torch.ones(2))
    if odd and kind == "subgroup":
        dist.all_reduce(torch.ones(3), group=subgroup)
    if not odd:
        dist.all_reduce(torch.ones(3))
    dist.barrier()


for step in range(10):
    exchange(odd=rank == 2 and step == 7)
    optimizer.step()
