"""What is read of a rank beside its record."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from algorun.host.rank_times import queued_s

HOGS = 3
SPIN = "while True: pass"


def test_a_process_that_finds_no_core_has_waited_for_one():
    """Several processes on one core."""
    core = {min(os.sched_getaffinity(0))}
    running = [
        subprocess.Popen([sys.executable, "-c", SPIN], preexec_fn=lambda: os.sched_setaffinity(0, core))
        for _ in range(HOGS)
    ]
    try:
        deadline = time.monotonic() + 60
        while min(queued_s(each.pid) for each in running) < 0.2:
            assert time.monotonic() < deadline, [queued_s(each.pid) for each in running]
            time.sleep(0.05)
    finally:
        for each in running:
            each.kill()
            each.wait()


def test_where_the_kernel_does_not_say_it_is_nothing():
    assert queued_s(0) == 0.0
    assert queued_s(2**22 + 1) == 0.0
