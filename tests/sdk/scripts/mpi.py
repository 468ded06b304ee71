"""An mpi4py script."""

import argparse
import os

import facts
from mpi4py import MPI

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
arguments = parser.parse_args()

world = MPI.COMM_WORLD
for _ in range(arguments.epochs):
    total = world.allreduce(world.rank + 1)
facts.write(
    world.rank, world_size=world.size, total=float(total), local_rank=int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]),
    greeting=os.environ.get("JOB_GREETING"),
)  # fmt: skip
if world.rank == 0:
    facts.save_model(total=total)
print(f"rank {world.rank} of {world.size} done")
