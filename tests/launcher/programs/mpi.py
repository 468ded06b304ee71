"""Ranks in a loop of collectives by mpi4py, of which the last one ends as it is told."""

import os
import signal
import sys
import time

from mpi4py import MPI

import algorun

mode = sys.argv[1]
world = MPI.COMM_WORLD
last = world.rank == world.size - 1
assert world.rank == int(os.environ["RANK"]), (world.rank, os.environ["RANK"])
print(f"library {MPI.Get_library_version().split(',')[0]}", flush=True)
for step in range(2000):
    assert world.allreduce(step) == step * world.size
    if step == 10:
        print(f"up {world.rank}", flush=True)
        if mode == "ok":
            break
        if last and mode == "raise":
            raise ValueError("bad batch 17")
        if last and mode == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if last and mode == "again" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("only once")
        if mode == "again":
            break
    if algorun.should_stop():
        print(f"saved {world.rank} after step {step}", flush=True)
        break
    time.sleep(0.02)
