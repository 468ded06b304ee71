"""Every rank waits; once all have had the time to start, the last one, on the last host, raises."""

import os
import time

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
print(f"rank {rank} of {world} waits", flush=True)
if rank == world - 1:
    time.sleep(3)
    print(f"raising at {time.time():.3f}", flush=True)
    raise ValueError("bad batch 17")
time.sleep(600)
