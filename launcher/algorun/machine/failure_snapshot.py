"""What a host measures when something failed: processes that the kernel killed for memory, /dev/shm, full disks.

`snapshot` is called when an attempt starts, `look` after a failure. `root` as in probe.
"""

from __future__ import annotations

from collections.abc import Iterable

from algorun.common.fast_dataclasses import dataclass

from . import memory_cgroup, probe
from .memory_cgroup import NO_LIMIT, MemoryCgroup
from .probe import Folder

NO_SHM = Folder(probe.SHM, writable=False, free_bytes=0, size_bytes=0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How many processes the kernel has killed for memory so far."""

    oom_kills: int
    of_machine: bool  # counted on the whole machine, because the cgroup has no such count


@dataclass(frozen=True, slots=True)
class FailureSnapshot:
    """The measurements after a failure. Sizes in bytes, 0 if unknown."""

    oom_kills: int = 0  # since the snapshot
    peak_bytes: int = 0  # most memory that this cgroup has used
    limit_bytes: int = 0  # the cgroup's memory limit; without one, the machine's memory
    shm: Folder = NO_SHM
    folders: tuple[Folder, ...] = ()  # those that the job writes to


def _oom_kills(cgroup: MemoryCgroup | None, root: str) -> Snapshot:
    if cgroup is not None:
        count = cgroup.number(cgroup.events, "oom_kill")
        if count is not None:
            return Snapshot(count, of_machine=False)
    return Snapshot(memory_cgroup.number(f"{root}/proc/vmstat", "oom_kill") or 0, of_machine=True)


def snapshot(root: str = "") -> Snapshot:
    """The count at the start of an attempt."""
    root = root.rstrip("/")
    return _oom_kills(memory_cgroup.find(root), root)


def look(before: Snapshot | None, folders: Iterable[str] = (), root: str = "") -> FailureSnapshot:
    """Measures after a failure. `before`: the attempt's snapshot, None if no attempt had begun. `folders`: those that
    the job writes to."""
    root = root.rstrip("/")
    cgroup = memory_cgroup.find(root)
    now = _oom_kills(cgroup, root)
    peak = limit = 0
    if cgroup is not None:
        peak = cgroup.number(cgroup.peak) or 0
        limit = cgroup.number(cgroup.limit) or 0
    if not 0 < limit < NO_LIMIT or now.of_machine:
        limit = probe.memory_bytes(root)
    return FailureSnapshot(
        oom_kills=now.oom_kills - before.oom_kills if before and now.of_machine == before.of_machine else 0,
        peak_bytes=0 if now.of_machine else peak,
        limit_bytes=limit,
        shm=probe.folder(f"{root}{probe.SHM}"),
        folders=tuple(probe.folder(path) for path in dict.fromkeys(folders)),
    )
