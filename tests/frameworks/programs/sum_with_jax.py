"""The sum of `rank + 1` over all ranks, by JAX, three times or until something happens: `sum_with_jax.py [END RANK]`.

END: `raise`, `kill` or `abort` at the third sum on that rank; `stop`: every rank goes on until the job stops.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time

import jax
from jax.experimental.multihost_utils import reached_preemption_sync_point

jax.distributed.initialize(num_processes=int(os.environ["WORLD_SIZE"]), process_id=int(os.environ["RANK"]))
end, rank = (sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 2 else ("", -1)


def meet_the_end() -> None:
    if rank != jax.process_index():
        return
    if end == "raise":
        raise ValueError("a bad sample")
    os.kill(os.getpid(), signal.SIGKILL if end == "kill" else signal.SIGABRT)


sum_of_all = jax.pmap(lambda value: jax.lax.psum(value, "all"), axis_name="all")
for step in itertools.count(1):
    found = sum_of_all(jax.numpy.full(jax.local_device_count(), jax.process_index() + 1.0))[0]
    if step == 1:
        print(f"sum {float(found)} of {jax.process_count()} processes, {jax.device_count()} devices", flush=True)
    if reached_preemption_sync_point(step) or (step == 3 and not end):
        print(f"left after step {step}", flush=True)
        break
    if step == 3 and end != "stop":
        meet_the_end()
    time.sleep(0.05)
