"""Looks at this machine: the only module that does. Cheap enough for every start (no subprocess, no torch import)."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .values import Sourced


@dataclass(frozen=True, slots=True)
class Machine:
    """What one host offers. Sizes in bytes; `cpus` counts what the affinity mask and the cgroup's quota allow."""

    gpus: Sourced[int]
    cpus: Sourced[int]
    interfaces: tuple[str, ...]
    default_interface: str
    efa_devices: tuple[str, ...]
    memory_bytes: int
    shm_bytes: int
    python: str
    packages: Mapping[str, str]  # distribution name to version, of the few that hosts must agree on


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _listing(path: str) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(path)))
    except OSError:
        return ()


def gpus(environ: Mapping[str, str]) -> Sourced[int]:
    """GPUs that a rank could open: NVIDIA's device files, narrowed by CUDA_VISIBLE_DEVICES."""
    found = sum(1 for name in _listing("/dev") if re.fullmatch(r"nvidia\d+", name))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # CUDA stops at the first entry that it does not know, -1 by convention.
        chosen = 0
        for item in visible.split(","):
            if not item.strip() or item.strip().startswith("-"):
                break
            chosen += 1
        if chosen < found:
            return Sourced(chosen, "CUDA_VISIBLE_DEVICES")
    return Sourced(found, "/dev/nvidia*")


def cpus() -> Sourced[int]:
    """CPUs by the affinity mask, lowered to the cgroup's quota where there is one."""
    mask = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, period = ([*_read("/sys/fs/cgroup/cpu.max").split(), "", ""])[:2]
    if not period:
        quota = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
        period = _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        allowed = max(1, -(-int(quota) // int(period)))
        if allowed < mask:
            return Sourced(allowed, "cgroup quota")
    return Sourced(mask, "affinity mask")


def memory_bytes() -> int:
    """The smaller of the machine's memory and the cgroup's limit, 0 where neither is known."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    sizes = [int(match[1]) * 1024] if match else []
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = _read(path)
        if limit.isdigit():
            sizes.append(int(limit))
    return min(sizes, default=0)


def default_interface() -> str:
    """The interface of the IPv4 default route, "" without one."""
    for line in _read("/proc/net/route").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[1] == "00000000" and int(fields[3], 16) & 1:
            return fields[0]
    return ""


def packages(names: tuple[str, ...] = ("torch", "nvidia_nccl_cu12", "mpi4py", "numpy")) -> dict[str, str]:
    """Versions of installed distributions, read from folder names: an import of torch costs more than a second."""
    found: dict[str, str] = {}
    for folder in sys.path:
        for item in _listing(folder) if folder else ():
            if item.endswith(".dist-info"):
                name, _, version = item.removesuffix(".dist-info").partition("-")
                if name in names:
                    found.setdefault(name, version)
    return found


def free_bytes(path: str) -> int:
    """Free bytes of the file system that holds `path`, 0 where it does not exist."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return 0
    return stat.f_frsize * stat.f_bavail


def look(environ: Mapping[str, str]) -> Machine:
    """One look at this machine."""
    return Machine(
        gpus=gpus(environ),
        cpus=cpus(),
        interfaces=_listing("/sys/class/net"),
        default_interface=default_interface(),
        efa_devices=tuple(name for name in _listing("/sys/class/infiniband") if name.startswith("efa")),
        memory_bytes=memory_bytes(),
        shm_bytes=free_bytes("/dev/shm"),
        python=".".join(map(str, sys.version_info[:3])),
        packages=packages(),
    )
