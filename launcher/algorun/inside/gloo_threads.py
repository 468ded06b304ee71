"""Lets Gloo's threads rest before the interpreter exits.

One of them (torch 2.10 to 2.13) may still release what the last collective has left to it, and needs the GIL for that. While
the interpreter exits this aborts the process (SIGABRT, "terminate called without an active exception"): a rank that has
finished would fail the job. rank_shim executes this file by its path, so it imports only built-in modules.
"""

from __future__ import annotations

import os
import time


def let_rest(looks: int = 3, longest: int = 500) -> None:
    """Waits, without the GIL, until Gloo's threads have been asleep for `looks` milliseconds, or for `longest` ms.

    Call it after destroy_process_group(). The threads end with their process group, which lives longer if a
    DistributedDataParallel, a sharded model or a variable of the script refers to it. Work that the last collective leaves
    to them takes microseconds.
    """
    asleep = 0
    while asleep < looks and longest and (found := states()):
        asleep = asleep + 1 if set(found) == {"S"} else 0
        longest -= 1
        time.sleep(0.001)


def states() -> list[str]:
    """The state of each of Gloo's threads, as in /proc/[pid]/stat: "S" for asleep."""
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/stat", encoding="utf-8", errors="replace") as file:
                name, _, rest = file.read().partition("(")[2].rpartition(") ")
        except OSError:  # the thread has just ended
            continue
        if name == "pt_gloo_runloop":
            found.append(rest[0])
    return found
