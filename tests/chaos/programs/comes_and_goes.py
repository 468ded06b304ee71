"""A rank with a whole life in three seconds: it fails in the first attempt, trains in the next one, saves if it is told to stop, leaves.

No torch. Rank 3 raises 0.3 s after the start of attempt 0. A stop is answered by a save of 0.4 s.
"""

import os
import signal
import sys
import time
from pathlib import Path

RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
SAVED = Path(os.environ["SAGEMAKER_BASE_DIR"], "checkpoints", f"rank-{RANK}")


def save(*_: object) -> None:
    aside = SAVED.with_name(f".{SAVED.name}")
    aside.write_text("whole")
    time.sleep(0.4)
    os.replace(aside, SAVED)
    sys.exit(0)


signal.signal(signal.SIGTERM, save)
print("up", RANK, ATTEMPT, flush=True)
if ATTEMPT == 0 and RANK == 3:
    time.sleep(0.3)
    raise ValueError("bad batch 17")
time.sleep(1.0 if ATTEMPT else 30.0)
