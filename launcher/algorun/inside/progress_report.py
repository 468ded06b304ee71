"""What algorun.progress() does in a rank: it notes the time in the rank's record, which the supervisor reads."""

from __future__ import annotations

import mmap
import os
import time

# As in rank_steps: words of 8 bytes. LAST_AT is the last sign of life of a rank whose optimizer steps are counted.
RECORD, LAST_AT, PROGRESS_AT = 256, 1, 25


class ProgressReport:
    """The record of this process's rank; without algorun's launcher there is none, and a report does nothing."""

    def __init__(self) -> None:
        self._times: memoryview[float] | None = None
        try:
            index = int(os.environ["ALGORUN_LOCAL_RANK"])
            with open(f"{os.environ['ALGORUN_RUN_DIR']}/steps", "r+b") as file:
                whole = memoryview(mmap.mmap(file.fileno(), 0))
            self._times = whole[index * RECORD :][:RECORD].cast("d") if 0 <= index * RECORD < len(whole) else None
        except (KeyError, ValueError, OSError, TypeError):
            pass

    def report(self) -> None:
        """This rank goes on."""
        if self._times is not None:
            now = time.monotonic()
            self._times[PROGRESS_AT] = now
            if self._times[LAST_AT]:
                self._times[LAST_AT] = now
