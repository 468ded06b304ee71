"""What a host measures when something failed: processes that the kernel killed for memory, /dev/shm, full disks.

`snapshot` is called when an attempt starts, `look` after a failure. `root` as in probe.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from algorun.common.fast_dataclasses import dataclass

from . import probe
from .probe import Folder
from .system_files import read

NO_SHM = Folder(probe.SHM, writable=False, free_bytes=0, size_bytes=0)
NO_LIMIT = 1 << 60  # bytes; cgroup v1 writes a number near 2**63 if there is no limit


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How many processes the kernel has killed for memory so far."""

    oom_kills: int
    of_machine: bool  # counted on the whole machine, because the cgroup has no such count


@dataclass(frozen=True, slots=True)
class Evidence:
    """The measurements after a failure. Sizes in bytes, 0 if unknown."""

    oom_kills: int = 0  # since the snapshot
    peak_bytes: int = 0  # most memory that this cgroup has used
    limit_bytes: int = 0  # the cgroup's memory limit; without one, the machine's memory
    shm: Folder = NO_SHM
    folders: tuple[Folder, ...] = ()  # those that the job writes to


@dataclass(frozen=True, slots=True)
class _Cgroup:
    """This process's memory cgroup: its folder, and the file names of its version (v1 or v2)."""

    folder: str
    events: str
    peak: str
    limit: str


def _cgroup(root: str) -> _Cgroup | None:
    """The memory cgroup; None if there is none.

    /proc/self/cgroup gives its path as the machine sees it. In a container the same cgroup is the mount's root.
    """
    lines = [line.split(":", 2) for line in read(f"{root}/proc/self/cgroup").splitlines()]
    paths = {line[1]: line[2] for line in lines if len(line) == 3}
    kinds = (
        ("memory", "/sys/fs/cgroup/memory", "memory.oom_control", "memory.max_usage_in_bytes", "memory.limit_in_bytes"),
        ("", "/sys/fs/cgroup", "memory.events", "memory.peak", "memory.max"),
    )
    for name, mount, events, peak, limit in kinds:
        for below in (paths.get(name, "/").rstrip("/"), ""):
            if ".." not in below and os.path.exists(f"{root}{mount}{below}/{events}"):
                return _Cgroup(f"{root}{mount}{below}", events, peak, limit)
    return None


def _number(path: str, name: str = "") -> int | None:
    """The number that a file holds, or the number after `name` on a line of it; None without one."""
    for line in read(path).splitlines():
        value = line.removeprefix(f"{name} ") if name else line
        if value.isdigit():
            return int(value)
    return None


def _oom_kills(cgroup: _Cgroup | None, root: str) -> Snapshot:
    if cgroup is not None:
        count = _number(f"{cgroup.folder}/{cgroup.events}", "oom_kill")
        if count is not None:
            return Snapshot(count, of_machine=False)
    return Snapshot(_number(f"{root}/proc/vmstat", "oom_kill") or 0, of_machine=True)


def snapshot(root: str = "") -> Snapshot:
    """The count at the start of an attempt."""
    root = root.rstrip("/")
    return _oom_kills(_cgroup(root), root)


def look(before: Snapshot | None, folders: Iterable[str] = (), root: str = "") -> Evidence:
    """Measures after a failure. `before`: the attempt's snapshot, None if no attempt had begun. `folders`: those that
    the job writes to."""
    root = root.rstrip("/")
    cgroup = _cgroup(root)
    now = _oom_kills(cgroup, root)
    peak = limit = 0
    if cgroup is not None:
        peak = _number(f"{cgroup.folder}/{cgroup.peak}") or 0
        limit = _number(f"{cgroup.folder}/{cgroup.limit}") or 0
    if not 0 < limit < NO_LIMIT or now.of_machine:
        limit = probe.memory_bytes(root)
    return Evidence(
        oom_kills=now.oom_kills - before.oom_kills if before and now.of_machine == before.of_machine else 0,
        peak_bytes=0 if now.of_machine else peak,
        limit_bytes=limit,
        shm=probe.folder(f"{root}{probe.SHM}"),
        folders=tuple(probe.folder(path) for path in dict.fromkeys(folders)),
    )
