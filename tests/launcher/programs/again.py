"""Fails in its first attempts: `again.py ATTEMPTS WHICH [save]`; rank WHICH fails, the others go on for a while.

It fails once all ranks are up, which it sees from files in the working folder: all hosts of a simulation share that.
"""

import os
import sys
import time
from pathlib import Path

UP_S = 60.0

attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
print(f"attempt {attempt} of {os.environ['TORCHELASTIC_MAX_RESTARTS']} port {os.environ['MASTER_PORT']}", flush=True)
if "save" in sys.argv:
    folder = Path(os.environ["SAGEMAKER_BASE_DIR"], "checkpoints")
    (folder / f"step-{attempt}").write_text("state")
if attempt < int(sys.argv[1]):
    Path(f"up-{attempt}-{rank}").touch()
    if rank == int(sys.argv[2]):
        up = [Path(f"up-{attempt}-{each}") for each in range(int(os.environ["WORLD_SIZE"]))]
        deadline = time.monotonic() + UP_S
        while missing := [path.name for path in up if not path.exists()]:
            assert time.monotonic() < deadline, missing
            time.sleep(0.02)
        raise ValueError(f"bad batch in attempt {attempt}")
    time.sleep(30)
print("fine", flush=True)
