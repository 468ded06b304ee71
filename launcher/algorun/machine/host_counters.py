"""What the kernel has counted on this host so far: CPU, memory, network and disks. `root` as in probe."""

from __future__ import annotations

import os
import re

from algorun.common.fast_dataclasses import dataclass

from . import memory_cgroup
from .system_files import read_text

TICKS = os.sysconf("SC_CLK_TCK")
SECTOR = 512  # bytes of /proc/diskstats, whatever the disk (Documentation/admin-guide/iostats.rst)
# Whole disks: their partitions, and what is built on top of them, would count the same bytes again.
DISK = re.compile(r"nvme\d+n\d+|(?:sd|vd|xvd|hd)[a-z]+")


@dataclass(frozen=True, slots=True)
class Counters:
    """None: this kernel or container does not say. Sizes in bytes."""

    cores: float  # that this host may use
    cpu_s: float | None  # seconds of work, of all cores together
    memory: int | None  # in use, without what the kernel can take back
    memory_limit: int | None  # of the cgroup; without one the machine's memory
    received: int | None  # by the network interface
    sent: int | None
    read: int | None  # from all disks
    written: int | None


def look(interface: str, root: str = "") -> Counters:
    """The counts of this moment; `interface` is the job's network interface."""
    cores, cpu_s = _cpu(root)
    memory, limit = _memory(root)
    received, sent = _network(interface, root)
    disk_read, disk_written = _disks(root)
    return Counters(cores, cpu_s, memory, limit, received, sent, disk_read, disk_written)


def _cpu(root: str) -> tuple[float, float | None]:
    """The cores and their work: of the cgroup where it has a quota, else of the cores that this process may run on."""
    allowed = os.sched_getaffinity(0)
    quota = _quota(root)
    if quota is not None and quota < len(allowed):
        return quota, _cgroup_work(root)
    lines = re.findall(r"^cpu(\d+) (.*)$", read_text(f"{root}/proc/stat"), re.MULTILINE)
    busy = [_busy_ticks(counts) for core, counts in lines if int(core) in allowed]
    if not sum(busy):  # a sandbox that hides its machine
        return len(allowed), _cgroup_work(root)
    return len(busy), sum(busy) / TICKS


def _busy_ticks(counts: str) -> int:
    """All but idle and iowait; guests are in user and nice already (proc(5))."""
    user, nice, system, _, _, *rest = (int(each) for each in counts.split()[:8])
    return user + nice + system + sum(rest)


def _quota(root: str) -> float | None:
    """The cores that the cgroup allows, None without a limit."""
    quota, period = ([*read_text(f"{root}/sys/fs/cgroup/cpu.max").split(), "", ""])[:2]
    if not period:
        quota = read_text(f"{root}/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
        period = read_text(f"{root}/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) > 0 else None


def _cgroup_work(root: str) -> float | None:
    """Seconds of work of this container's cgroup, of version 2 or 1."""
    used = memory_cgroup.number(f"{root}/sys/fs/cgroup/cpu.stat", "usage_usec")
    if used is not None:
        return used / 1e6
    used = memory_cgroup.number(f"{root}/sys/fs/cgroup/cpuacct/cpuacct.usage")
    return None if used is None else used / 1e9


def _memory(root: str) -> tuple[int | None, int | None]:
    """In use and limit. Pages of files are left out, because the kernel takes them back; those of tmpfs count."""
    text = read_text(f"{root}/proc/meminfo")
    kib = {name: int(size) for name, size in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
    size = kib["MemTotal"] * 1024 if "MemTotal" in kib else None
    cgroup = memory_cgroup.find(root)
    limit = cgroup.number(cgroup.limit) if cgroup is not None else None
    if cgroup is not None and limit and limit < (size or memory_cgroup.NO_LIMIT):
        use = cgroup.number(cgroup.use)
        files = [cgroup.number("memory.stat", f"{cgroup.files}{kind}_file") or 0 for kind in ("active", "inactive")]
        return (None if use is None else max(0, use - sum(files))), limit
    return (size - kib["MemAvailable"] * 1024 if size and "MemAvailable" in kib else None), size


def _network(interface: str, root: str) -> tuple[int | None, int | None]:
    for line in read_text(f"{root}/proc/net/dev").splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == interface:
            values = counts.split()
            return int(values[0]), int(values[8])
    return None, None


def _disks(root: str) -> tuple[int | None, int | None]:
    rows = [line.split() for line in read_text(f"{root}/proc/diskstats").splitlines()]
    disks = [row for row in rows if len(row) > 9 and DISK.fullmatch(row[2])]
    if not disks:
        return None, None
    return sum(int(row[5]) for row in disks) * SECTOR, sum(int(row[9]) for row in disks) * SECTOR
