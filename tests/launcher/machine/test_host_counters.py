"""What the kernel has counted, read from trees that describe a host."""

from __future__ import annotations

import os

import pytest

from algorun.machine import host_counters
from algorun.machine.host_counters import TICKS

CORES = len(os.sched_getaffinity(0))
STAT = "cpu  1 1 1 1 1 1 1 1 0 0\n" + "".join(
    f"cpu{core} 100 50 25 9000 700 3 2 20 40 0\n" for core in sorted(os.sched_getaffinity(0))
)
MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\n"
NET = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     111      29    0    0    0     0          0         0      111      29    0    0    0     0       0          0
  eth0: 5000 13841    0    0    0     0          0         0   676     6985    0    0    0     0       0          0
"""
DISKS = """ 259       0 nvme0n1 10 0 2000 5 20 0 4000 9 0 0 0
 259       1 nvme0n1p1 10 0 2000 5 20 0 4000 9 0 0 0
 253       0 dm-0 10 0 2000 5 20 0 4000 9 0 0 0
   8       0 sda 1 0 8 5 2 0 16 9 0 0 0
   7       0 loop0 1 0 8 5 2 0 16 9 0 0 0
"""


def tree(folder, **files):
    for path, text in {
        "proc/stat": STAT,
        "proc/meminfo": MEMINFO,
        "proc/net/dev": NET,
        "proc/diskstats": DISKS,
        **files,
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return str(folder)


def test_a_host_without_limits(tmp_path):
    found = host_counters.look("eth0", tree(tmp_path))
    assert found.cores == CORES
    assert found.cpu_s == pytest.approx(CORES * (100 + 50 + 25 + 3 + 2 + 20) / TICKS)
    assert (found.memory, found.memory_limit) == (400 * 1024, 1000 * 1024)
    assert (found.received, found.sent) == (5000, 676)
    assert (found.read, found.written) == (2008 * 512, 4016 * 512)


def test_a_container_with_limits_of_version_2(tmp_path):
    root = tree(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
            "sys/fs/cgroup/memory.events": "oom 0\noom_kill 0\n",
            "sys/fs/cgroup/memory.max": "500000\n",
            "sys/fs/cgroup/memory.current": "400000\n",
            "sys/fs/cgroup/memory.stat": "anon 1\nactive_file 60000\ninactive_file 40000\n",
        },
    )
    found = host_counters.look("eth0", root)
    assert (found.cores, found.cpu_s) == (0.5, 2.5)
    assert (found.memory, found.memory_limit) == (300000, 500000)


def test_a_container_with_limits_of_version_1(tmp_path):
    memory = "sys/fs/cgroup/memory"
    root = tree(
        tmp_path,
        **{
            "proc/self/cgroup": "4:memory:/docker/1f\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpuacct/cpuacct.usage": "2500000000\n",
            f"{memory}/memory.oom_control": "oom_kill 0\n",
            f"{memory}/memory.limit_in_bytes": "500000\n",
            f"{memory}/memory.usage_in_bytes": "400000\n",
            f"{memory}/memory.stat": "active_file 1\ntotal_active_file 60000\ntotal_inactive_file 40000\n",
        },
    )
    found = host_counters.look("eth0", root)
    assert (found.cores, found.cpu_s) == (0.5, 2.5)
    assert (found.memory, found.memory_limit) == (300000, 500000)


def test_a_cgroup_without_a_limit_is_the_machine(tmp_path):
    memory = "sys/fs/cgroup/memory"
    files = {
        "proc/self/cgroup": "4:memory:/\n",
        f"{memory}/memory.oom_control": "oom_kill 0\n",
        f"{memory}/memory.limit_in_bytes": "9223372036854771712\n",
        f"{memory}/memory.usage_in_bytes": "1\n",
    }
    found = host_counters.look("eth0", tree(tmp_path, **files))
    assert (found.memory, found.memory_limit) == (400 * 1024, 1000 * 1024)


def test_a_sandbox_that_shows_nothing(tmp_path):
    found = host_counters.look("eth0", str(tmp_path))
    assert found.cores == CORES
    assert (found.cpu_s, found.memory, found.received, found.sent, found.read, found.written) == (None,) * 6


def test_this_machine():
    found = host_counters.look("lo")
    assert found.cpu_s is not None
    assert found.cpu_s > 0
    assert 0 < (found.memory or 0) < (found.memory_limit or 0)
