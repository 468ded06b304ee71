"""When this process was started, by the clock that the launcher reads."""

from __future__ import annotations

import os
import time

OLDEST_S = 600.0  # a launcher older than this was not started for the job: its age says nothing


def begun_at(now: float) -> float:
    """When the kernel started this process, in seconds of the monotonic clock whose time is `now`; `now` if unknown.

    The kernel counts in hundredths of a second. An exec, such as that of a container's entry script, keeps the moment.
    """
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()  # from field 3 on, proc_pid_stat(5)
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return now
    return now - age if 0 <= age < OLDEST_S else now
