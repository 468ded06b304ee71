"""Fails in its first attempts: `again.py ATTEMPTS WHICH [save]`; rank WHICH fails, the others go on for a while."""

import os
import sys
import time
from pathlib import Path

attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
print(f"attempt {attempt} of {os.environ['TORCHELASTIC_MAX_RESTARTS']} port {os.environ['MASTER_PORT']}", flush=True)
if "save" in sys.argv:
    folder = Path(os.environ["SAGEMAKER_BASE_DIR"], "checkpoints")
    (folder / f"step-{attempt}").write_text("state")
if attempt < int(sys.argv[1]):
    if rank == int(sys.argv[2]):
        raise ValueError(f"bad batch in attempt {attempt}")
    time.sleep(30)
print("fine", flush=True)
