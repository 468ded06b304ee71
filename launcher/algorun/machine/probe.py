"""Measures this host. Cheap enough for every start: no subprocess, no import of torch.

`root` is put before every path in /dev, /proc, /sys and /etc: tests describe another host in a folder.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from algorun.common.fast_dataclasses import dataclass, field
from algorun.common.process_limit import cannot_start, is_limit
from algorun.job.values import Sourced

from . import efa, nvidia
from . import visible_gpus as visible
from .efa import Plugin
from .nvidia import Nvidia
from .openmpi import DAEMONS, OpenMpi
from .system_files import listing, read_text
from .visible_gpus import Visible

if TYPE_CHECKING:
    from .ray import Ray

SHM = "/dev/shm"
IMAGE = "/etc/algorun-image"  # written by the image's build
NO_CUDA = "none"
LONGEST_IMAGE = 64  # characters
VERSION_TIMEOUT_S = 5.0  # for `mpirun --version`, usually 0.01 s; below the heartbeat time-out of the other hosts


@dataclass(frozen=True, slots=True)
class Machine:
    """What one host offers. Sizes in bytes."""

    gpus: Sourced[int]
    cpus: Sourced[int]
    interfaces: tuple[str, ...]
    default_interface: str
    efa_devices: tuple[str, ...]
    memory_bytes: int
    shm_bytes: int
    python: str
    packages: Mapping[str, str]  # distribution name to version, of those on which all hosts must agree
    memlock_bytes: int | None = None  # memory that a process may pin; None: no limit
    image: str = ""  # the image's id, written by its build; "" outside of our image
    openmpi: OpenMpi | None = None  # filled in for the mpirun engine only
    ray: Ray | None = None  # filled in for the ray engine only
    nvidia: Nvidia = field(default_factory=Nvidia)
    visible: Visible = field(default_factory=Visible)  # the GPUs that CUDA_VISIBLE_DEVICES lets ranks see
    torch_cuda: str = ""  # CUDA version that torch is built with, NO_CUDA for a CPU build, "" without torch
    nccl_plugin: Plugin = field(default_factory=Plugin)  # filled in only if there is an EFA device
    efa_nodes_missing: tuple[str, ...] = ()  # nodes such as uverbs0, of devices in /sys, that /dev lacks


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder and its file system. For a folder that does not exist yet: the folder in which it would be created."""

    path: str
    writable: bool
    free_bytes: int
    size_bytes: int  # 0: unknown
    free_files: int = 1  # number of files that can still be created (free inodes)


def gpus(environ: Mapping[str, str], root: str = "") -> Sourced[int]:
    """The number of GPUs that ranks can use: NVIDIA's device files, limited by CUDA_VISIBLE_DEVICES."""
    found = nvidia.look(environ, root)
    return _gpus(visible.look(environ, found), found.devices)


def _gpus(seen: Visible, devices: int) -> Sourced[int]:
    if seen.count < devices:
        return Sourced(seen.count, seen.variable)
    return Sourced(devices, "/dev/nvidia*")


def cpus(root: str = "") -> Sourced[int]:
    """The number of CPUs that this process may use: the affinity mask, or the cgroup's quota if that is less."""
    mask = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, period = ([*read_text(f"{root}/sys/fs/cgroup/cpu.max").split(), "", ""])[:2]
    if not period:
        quota = read_text(f"{root}/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
        period = read_text(f"{root}/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        allowed = max(1, -(-int(quota) // int(period)))
        if allowed < mask:
            return Sourced(allowed, "cgroup quota")
    return Sourced(mask, "affinity mask")


def memory_bytes(root: str = "") -> int:
    """The machine's memory, or the cgroup's limit if that is less; 0 if both are unknown."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", read_text(f"{root}/proc/meminfo"), re.MULTILINE)
    sizes = [int(match[1]) * 1024] if match else []
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = read_text(f"{root}{path}")
        if limit.isdigit():
            sizes.append(int(limit))
    return min(sizes, default=0)


def default_interface(root: str = "") -> str:
    """The interface of the IPv4 default route, "" without one."""
    for line in read_text(f"{root}/proc/net/route").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[1] == "00000000" and int(fields[3], 16) & 1:
            return fields[0]
    return ""


def packages(
    names: tuple[str, ...] = ("torch", "nvidia_nccl_cu12", "mpi4py", "numpy"), before: Iterable[str] = ()
) -> dict[str, str]:
    """Versions of installed distributions, read from folder names: an import of torch costs more than a second.

    `before`: folders that count more than those of this interpreter."""
    found: dict[str, str] = {}
    for folder in (*before, *sys.path):
        for item in listing(folder) if folder else ():
            if item.endswith(".dist-info"):
                name, _, version = item.removesuffix(".dist-info").partition("-")
                if name in names:
                    found.setdefault(name, version)
    return found


def torch_cuda(folders: Iterable[str]) -> str:
    """The CUDA version, such as 12.8, of the first torch in these folders; NO_CUDA for a CPU build, "" without torch.

    Read from torch/version.py (`cuda: Optional[str] = '12.8'`): an import of torch costs more than a second.
    """
    for folder in folders:
        if folder and (text := read_text(f"{folder}/torch/version.py")):
            match = re.search(r"^cuda\b[^=\n]*=\s*(?:['\"]([\d.]+)['\"]|None)", text, re.MULTILINE)
            return (match[1] or NO_CUDA) if match else ""
    return ""


def folder(path: str) -> Folder:
    """Whether a folder is writable, and how much room it has."""
    existing = path
    while existing != "/" and not os.path.isdir(existing):
        existing = os.path.dirname(existing) or "/"
    try:
        stat = os.statvfs(existing)
    except OSError:
        return Folder(path, writable=False, free_bytes=0, size_bytes=0)
    return Folder(
        path,
        writable=os.access(existing, os.W_OK | os.X_OK),
        free_bytes=stat.f_frsize * stat.f_bavail,
        size_bytes=stat.f_frsize * stat.f_blocks,
        free_files=stat.f_favail if stat.f_files else 1,  # some file systems have no such limit
    )


def memlock_bytes() -> int | None:
    """The bytes of memory that a process may pin, None if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def openmpi(environ: Mapping[str, str]) -> OpenMpi | None:
    """Open MPI of the mpirun on PATH, else of the mpirun beside the Python interpreter; None without either.

    The daemon beside mpirun shows the major version: orted is 4, prted is 5. If neither or both are there,
    `mpirun --version` tells (10 ms).
    """
    import shutil  # only the mpirun engine needs it

    beside = os.path.dirname(sys.executable)
    on_path = shutil.which("mpirun", path=environ.get("PATH", os.defpath))
    file = on_path or shutil.which("mpirun", path=beside)
    if file is None:
        return None
    folder = os.path.dirname(os.path.abspath(file))
    lying = [major for major, name in DAEMONS.items() if os.path.exists(f"{folder}/{name}")]
    major = lying[0] if len(lying) == 1 and _is_open_mpi(file) else _asked_major(file)
    daemon = DAEMONS.get(major, "")
    daemon = f"{folder}/{daemon}" if major in lying else daemon
    # PyPI's wheels: mpirun is a wrapper that sets the installation's folder. Their daemons have no wrapper.
    moved = any(os.path.exists(f"{folder}/{name}_wrapper") for name in ("orterun", "ompirun"))
    return OpenMpi(file, bool(on_path), major, daemon, os.path.dirname(folder) if moved else "")


def _is_open_mpi(mpirun: str) -> bool:
    """False if this mpirun belongs to another MPI (Debian's alternatives put several into one folder)."""
    return os.path.basename(os.path.realpath(mpirun)) in ("mpirun", "mpirun.openmpi", "orterun", "prterun")


def _asked_major(mpirun: str) -> int:
    """The major version that `mpirun --version` prints; 0 if this is not Open MPI."""
    import subprocess

    try:
        done = subprocess.run(
            [mpirun, "--version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        if is_limit(error):
            raise cannot_start(f"{mpirun} --version") from None
        return 0
    match = re.search(r"\(Open ?(?:MPI|RTE)\) (\d+)\.", done.stdout)
    return int(match[1]) if match else 0


def look(environ: Mapping[str, str], root: str = "") -> Machine:
    """Measures this host."""
    root = root.rstrip("/")
    found = nvidia.look(environ, root)
    seen = visible.look(environ, found)
    network = efa.devices(root)
    return Machine(
        gpus=_gpus(seen, found.devices),
        cpus=cpus(root),
        interfaces=listing(f"{root}/sys/class/net"),
        default_interface=default_interface(root),
        efa_devices=network,
        memory_bytes=memory_bytes(root),
        shm_bytes=folder(f"{root}{SHM}").free_bytes if os.path.isdir(f"{root}{SHM}") else 0,
        python=".".join(map(str, sys.version_info[:3])),
        packages=packages(),
        memlock_bytes=memlock_bytes(),
        image=read_text(f"{root}{IMAGE}")[:LONGEST_IMAGE],
        nvidia=found,
        visible=seen,
        torch_cuda=torch_cuda(sys.path),
        nccl_plugin=efa.plugin(environ, root) if network else Plugin(),
        efa_nodes_missing=efa.missing_nodes(root),
    )
