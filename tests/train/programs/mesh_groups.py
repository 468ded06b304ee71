"""One rank of eight, two stages x two replicas x two shares: `mesh_groups.py PLACEMENT`. Prints the ranks that each group adds up.

Then rank 7 stays away from the groups of its mesh, and the others print what they get instead of a sum.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

from algorun_train.parallel.layout.grid import Grid
from algorun_train.parallel.run import process_groups
from algorun_train.parallel.shard.sharded_model import REPLICA, SHARD
from tests.train import short_collectives

LIMIT_S = 4
rank = int(os.environ["RANK"])
short_collectives.meet(LIMIT_S)
axes = process_groups.join(Grid(4, 2, sys.argv[1]), rank, torch.device("cpu"), 2)
assert axes.mesh is not None
groups = {
    "pp": axes.pp_group,
    "dp": axes.dp_group,
    "replica": axes.mesh.mesh.get_group(REPLICA),
    "shard": axes.mesh.mesh.get_group(SHARD),
}


def summed(group: dist.ProcessGroup | None) -> int:
    mine = torch.tensor([1 << rank])
    dist.all_reduce(mine, group=group)
    return int(mine)


print({name: [r for r in range(8) if summed(group) >> r & 1] for name, group in groups.items()}, flush=True)
print("index", axes.mesh.index, "first", axes.mesh.is_first_replica, "of", axes.mesh.mesh.shape, flush=True)
dist.barrier()
if rank == 7:
    time.sleep(3 * LIMIT_S)  # longer than its peers may wait, and still there: they see no closed connection
for name in (SHARD, REPLICA) if rank != 7 else ():
    begun = time.monotonic()
    try:
        summed(groups[name])
    except RuntimeError as error:
        print("no sum over", name, "timed out" if "imed out" in str(error) else error, flush=True)
        assert time.monotonic() - begun < 2.5 * LIMIT_S
os._exit(0)  # groups with a failed collective cannot be ended in order
