"""Preflight: can this host run the job at all? `algorun doctor` shows the same findings. Pure: probe measures."""

from __future__ import annotations

from collections.abc import Iterable

from algorun.job.values import Sourced

from . import preflight_gpus
from .finding import Finding
from .probe import SHM, Folder, Machine

GIB, MIB = 1024**3, 1024**2
LITTLE_SHM = 256 * MIB  # bytes; DataLoader workers and NCCL put their buffers there
MORE_SHM = "docker run --shm-size 1g, or fewer DataLoader workers"
FULL = MIB  # bytes; a disk with no more than this free counts as full
LITTLE_DISK = 2 * GIB  # bytes; about a checkpoint of a medium-sized model with its optimizer


def memory(machine: Machine, ranks: int) -> Finding:
    """/dev/shm: the ranks of a host exchange buffers there."""
    value = f"{SHM} has {size(machine.shm_bytes)} free"
    if machine.shm_bytes < LITTLE_SHM and ranks > 1:
        return Finding("shared memory", value, "warn", MORE_SHM)
    return Finding("shared memory", value)


def memlock(machine: Machine, hosts: int) -> list[Finding]:
    """EFA pins memory, so it needs `ulimit -l unlimited`. A failure only if the job will use EFA: several hosts, and
    NCCL finds its plugin."""
    if not machine.efa_devices or machine.memlock_bytes is None:
        return []
    value = f"limited to {machine.memlock_bytes} bytes; EFA ({machine.efa_devices[0]}) needs it unlimited"
    state = "fail" if hosts > 1 and machine.nccl_plugin.path else "warn"
    return [Finding("memlock", value, state, "docker run --ulimit memlock=-1")]


def results(folders: Iterable[Folder]) -> list[Finding]:
    """The folders that every job writes to: a failure if one is not writable or full."""
    found = []
    for each in folders:
        if not each.writable:
            found.append(
                Finding(each.path, "not writable", "fail", "mount it writable, run as root or change its owner")
            )
        elif each.size_bytes and each.free_bytes <= FULL:
            found.append(Finding(each.path, _free(each), "fail", "free some space"))
    return found


def checkpoints(folder: Folder) -> list[Finding]:
    """The checkpoint folder. A full disk is a warning only, because few programs write there."""
    if not folder.size_bytes:
        return []
    if folder.free_bytes < LITTLE_DISK or folder.free_files == 0:
        return [Finding(folder.path, _free(folder), "warn", "free some space, or give the job a larger volume")]
    return [Finding(folder.path, _free(folder))]


def _free(folder: Folder) -> str:
    files = ", and no free inodes" if folder.free_files == 0 else ""
    return f"{size(folder.free_bytes)} free of {size(folder.size_bytes)}{files}"


def examine(
    machine: Machine, slots: Sourced[int], written: Iterable[Folder], kept: Folder | None, *, hosts: int
) -> list[Finding]:
    """All warnings and failures of this host for a job with `slots` ranks here, on `hosts` hosts.

    `written`: the folders of results; `kept`: the checkpoint folder, None outside of a job folder.
    """
    found = [
        *preflight_gpus.examine(machine, slots, hosts),
        *memlock(machine, hosts),
        *results(written),
        *(checkpoints(kept) if kept else ()),
        memory(machine, slots.value),
    ]
    return [each for each in found if each.state != "ok"]


def size(count: int) -> str:
    """A number of bytes as people read it: `1.5 GiB`, `64 MiB`."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"
