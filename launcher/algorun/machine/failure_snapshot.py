"""What the machine knows of a failure: the kernel's count of processes killed for memory, /dev/shm, full disks.

A snapshot when an attempt starts, and a look when a rank has failed. `root` as in probe.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from . import probe
from .probe import Folder
from .system_files import read

NO_SHM = Folder(probe.SHM, writable=False, free_bytes=0, size_bytes=0)
NO_LIMIT = 1 << 60  # bytes; cgroup v1 says "none" by a number near 2**63


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Processes that the kernel had killed for memory: in this cgroup, or on the machine where the cgroup says nothing."""

    oom_kills: int
    of_machine: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was found. Sizes in bytes, 0 where they are not known."""

    oom_kills: int = 0  # since the snapshot
    peak_bytes: int = 0  # of memory, of this cgroup
    limit_bytes: int = 0  # the cgroup's, or all that the machine has
    shm: Folder = NO_SHM
    folders: tuple[Folder, ...] = ()


@dataclass(frozen=True, slots=True)
class _Cgroup:
    """This process's memory cgroup: where it is, and how its version names the files."""

    folder: str
    events: str
    peak: str
    limit: str


def _cgroup(root: str) -> _Cgroup | None:
    """/proc/self/cgroup names it from outside; in a container its own lies at the mount's root."""
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
    """The number in a file, or behind a name in it."""
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
    """At the start of an attempt."""
    root = root.rstrip("/")
    return _oom_kills(_cgroup(root), root)


def look(before: Snapshot | None, folders: Iterable[str] = (), root: str = "") -> Evidence:
    """When something has failed, `before` is None where no attempt had begun. `folders` are what the job writes to."""
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
