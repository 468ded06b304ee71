"""This process's memory cgroup, of version 1 or 2. `root` as in probe."""

from __future__ import annotations

import os

from algorun.common.fast_dataclasses import dataclass

from .system_files import read_text

NO_LIMIT = 1 << 60  # bytes; cgroup v1 writes a number near 2**63 if there is no limit


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    """A memory cgroup: its folder, and the file names of its version.

    `files`: prefix of the counters in memory.stat that include the cgroups below it.
    """

    folder: str
    events: str
    peak: str
    limit: str
    use: str
    files: str

    def number(self, file: str, name: str = "") -> int | None:
        """The number that one of its files holds, or the number after `name` on a line of it; None without one."""
        return number(f"{self.folder}/{file}", name)


def find(root: str = "") -> MemoryCgroup | None:
    """The memory cgroup; None if there is none.

    /proc/self/cgroup gives its path as the machine sees it. In a container the same cgroup is the mount's root.
    """
    lines = [line.split(":", 2) for line in read_text(f"{root}/proc/self/cgroup").splitlines()]
    paths = {line[1]: line[2] for line in lines if len(line) == 3}
    first = ("memory.oom_control", "memory.max_usage_in_bytes", "memory.limit_in_bytes", "memory.usage_in_bytes")
    second = ("memory.events", "memory.peak", "memory.max", "memory.current")
    kinds = (("memory", "/sys/fs/cgroup/memory", first, "total_"), ("", "/sys/fs/cgroup", second, ""))
    for name, mount, (events, peak, limit, use), files in kinds:
        for below in (paths.get(name, "/").rstrip("/"), ""):
            if ".." not in below and os.path.exists(f"{root}{mount}{below}/{events}"):
                return MemoryCgroup(f"{root}{mount}{below}", events, peak, limit, use, files)
    return None


def number(path: str, name: str = "") -> int | None:
    """The number that a file holds, or the number after `name` on a line of it; None without one."""
    for line in read_text(path).splitlines():
        value = line.removeprefix(f"{name} ") if name else line
        if value.isdigit():
            return int(value)
    return None
