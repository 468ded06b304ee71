"""What is read of a rank beside its record, and when a host reports."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

from algorun.host.measuring.rank_times import RankReports, ReportTo, queued_s

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


def test_a_heartbeat_that_comes_a_little_early_leaves_no_report_out():
    """Hosts that report at different seconds show different numbers of steps, and nobody could be compared."""
    record, told = SimpleNamespace(count=0, activities=(0.0,) * 7, group=0, pid=0), []
    file = SimpleNamespace(report=lambda times, last: None)
    reports = RankReports(SimpleNamespace(read=lambda _: record), [0], 0, ReportTo(told.append, file))
    for beat in (0.0, 0.995, 2.01, 2.98, 4.0):
        record.count += 10
        reports.look(beat, 1.0)
    assert [pace.ranks[0].steps for pace in told] == [10, 20, 30, 40, 50]
    for beat in (4.4, 4.7):
        reports.look(beat, 1.0)
    assert len(told) == 5
