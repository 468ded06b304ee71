"""Ranks of uneven speed that stop together: `stopping.py torch|default-group|mpi`."""

import os
import signal
import sys
import time

import algorun

MODE = sys.argv[1]
RANK = int(os.environ["RANK"])
if MODE == "mpi":
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
else:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if MODE == "default-group":
        dist.is_gloo_available = lambda: False
for step in range(1, 60_000):
    time.sleep(0.001 * (1 + RANK % 2))
    if step == 5:
        print(f"up {RANK}", flush=True)
    if step == 40 and os.environ.get("STOP_RANK") == str(RANK):
        os.kill(os.getpid(), signal.SIGTERM)
    if algorun.should_stop():
        assert algorun.should_stop()
        print(f"saved {RANK} after step {step}", flush=True)
        break
