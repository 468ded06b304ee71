"""Rank 0 of 1,024 pretended ones, 8 stages and 16 shares, makes its groups: prints how often it waits for other ranks."""

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # registers the backend

from algorun_train.parallel.layout.grid import Grid
from algorun_train.parallel.run import process_groups

assert fake_pg
RANKS = 1024


class Counting(dist.Store):
    """A store in which all ranks have come as soon as one asks."""

    waits = 0

    def add(self, key: str, amount: int) -> int:
        Counting.waits += 1
        return RANKS

    def set(self, key: str, value: str) -> None:
        pass


dist.init_process_group("fake", rank=0, world_size=RANKS, store=Counting())
assert Counting.waits == 0  # a barrier would ask it
axes = process_groups.join(Grid(128, 8), 0, torch.device("cpu"), 16)
assert axes.mesh is not None
print("members:", axes.mesh.mesh.shape, "waits:", Counting.waits)
