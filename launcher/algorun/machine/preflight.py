"""Can this host run the job at all? Pure: rules over what probe saw. `algorun doctor` shows the same findings."""

from __future__ import annotations

from collections.abc import Iterable

from algorun.job.values import Sourced

from . import preflight_gpus
from .finding import Finding
from .probe import SHM, Folder, Machine

GIB, MIB = 1024**3, 1024**2
LITTLE_SHM = 256 * MIB  # bytes; DataLoader workers and NCCL put their buffers there
MORE_SHM = "docker run --shm-size 1g, or fewer DataLoader workers"
FULL = MIB  # bytes free or fewer: nothing can be saved there
LITTLE_DISK = 2 * GIB  # bytes; a checkpoint of a middling model with its optimizer


def memory(machine: Machine, ranks: int) -> Finding:
    """/dev/shm, which ranks on one host share buffers through."""
    value = f"{SHM} has {size(machine.shm_bytes)} free"
    if machine.shm_bytes < LITTLE_SHM and ranks > 1:
        return Finding("shared memory", value, "warn", MORE_SHM)
    return Finding("shared memory", value)


def memlock(machine: Machine, hosts: int) -> list[Finding]:
    """EFA pins memory. One host alone does not use it, nor does NCCL without its plugin."""
    if not machine.efa_devices or machine.memlock_bytes is None:
        return []
    value = f"{machine.memlock_bytes} bytes may be pinned, and {machine.efa_devices[0]} needs all memory"
    state = "fail" if hosts > 1 and machine.nccl_plugin.path else "warn"
    return [Finding("memlock", value, state, "docker run --ulimit memlock=-1")]


def results(folders: Iterable[Folder]) -> list[Finding]:
    """Folders that every job writes to."""
    found = []
    for each in folders:
        if not each.writable:
            found.append(
                Finding(each.path, "cannot be written", "fail", "mount it writable, run as root or change its owner")
            )
        elif each.size_bytes and each.free_bytes <= FULL:
            found.append(Finding(each.path, _free(each), "fail", "free some space"))
    return found


def checkpoints(folder: Folder) -> list[Finding]:
    """Few programs write there, so a full disk is a warning."""
    if not folder.size_bytes:
        return []
    if folder.free_bytes < LITTLE_DISK or folder.free_files == 0:
        return [Finding(folder.path, _free(folder), "warn", "free some space, or give the job a larger volume")]
    return [Finding(folder.path, _free(folder))]


def _free(folder: Folder) -> str:
    files = " and room for no more files" if folder.free_files == 0 else ""
    return f"{size(folder.free_bytes)} free of {size(folder.size_bytes)}{files}"


def examine(
    machine: Machine, slots: Sourced[int], written: Iterable[Folder], kept: Folder | None, *, hosts: int
) -> list[Finding]:
    """What speaks against this job here: warnings and what makes it fail.

    `written` are the folders of the results, `kept` that of checkpoints; none outside of a job folder.
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
    """Bytes for people."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"
