"""Looks at this machine. Cheap enough for every start (no subprocess, no torch import).

`root` is the folder that /dev, /proc, /sys and /etc are read below: another one describes another machine.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from algorun.job.values import Sourced

from . import efa, nvidia
from . import visible_gpus as visible
from .efa import Plugin
from .nvidia import Nvidia
from .openmpi import DAEMONS, OpenMpi
from .system_files import listing, read
from .visible_gpus import Visible

SHM = "/dev/shm"
IMAGE = "/etc/algorun-image"  # written by the image's build
NO_CUDA = "none"
LONGEST_IMAGE = 64  # characters
VERSION_TIMEOUT_S = 5.0  # for `mpirun --version`, 0.01 s where nothing is wrong; other hosts wait for a sign of life


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
    memlock_bytes: int | None = None  # that a process may pin; None: no limit
    image: str = ""  # the id that the build wrote into the image; "" outside of one
    openmpi: OpenMpi | None = None  # looked for only where the engine is mpirun
    nvidia: Nvidia = field(default_factory=Nvidia)
    visible: Visible = field(default_factory=Visible)  # what CUDA_VISIBLE_DEVICES leaves of the GPUs
    torch_cuda: str = ""  # the CUDA that torch is built with, NO_CUDA without one; "" where there is no torch
    nccl_plugin: Plugin = field(default_factory=Plugin)  # looked for only where there is an EFA device
    efa_nodes_missing: tuple[str, ...] = ()  # of devices that /sys shows: uverbs0


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder (or, where it does not exist yet, what it would be made in) and its file system. Sizes in bytes."""

    path: str
    writable: bool
    free_bytes: int
    size_bytes: int  # 0: the file system does not say
    free_files: int = 1  # files that can still be made there


def gpus(environ: Mapping[str, str], root: str = "") -> Sourced[int]:
    """GPUs that a rank could open: NVIDIA's device files, narrowed by CUDA_VISIBLE_DEVICES."""
    found = nvidia.look(environ, root)
    return _gpus(visible.look(environ, found), found.devices)


def _gpus(seen: Visible, devices: int) -> Sourced[int]:
    if seen.count < devices:
        return Sourced(seen.count, seen.variable)
    return Sourced(devices, "/dev/nvidia*")


def cpus(root: str = "") -> Sourced[int]:
    """CPUs by the affinity mask, lowered to the cgroup's quota where there is one."""
    mask = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, period = ([*read(f"{root}/sys/fs/cgroup/cpu.max").split(), "", ""])[:2]
    if not period:
        quota = read(f"{root}/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
        period = read(f"{root}/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        allowed = max(1, -(-int(quota) // int(period)))
        if allowed < mask:
            return Sourced(allowed, "cgroup quota")
    return Sourced(mask, "affinity mask")


def memory_bytes(root: str = "") -> int:
    """The smaller of the machine's memory and the cgroup's limit, 0 where neither is known."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", read(f"{root}/proc/meminfo"), re.MULTILINE)
    sizes = [int(match[1]) * 1024] if match else []
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = read(f"{root}{path}")
        if limit.isdigit():
            sizes.append(int(limit))
    return min(sizes, default=0)


def default_interface(root: str = "") -> str:
    """The interface of the IPv4 default route, "" without one."""
    for line in read(f"{root}/proc/net/route").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[1] == "00000000" and int(fields[3], 16) & 1:
            return fields[0]
    return ""


def packages(names: tuple[str, ...] = ("torch", "nvidia_nccl_cu12", "mpi4py", "numpy")) -> dict[str, str]:
    """Versions of installed distributions, read from folder names: an import of torch costs more than a second."""
    found: dict[str, str] = {}
    for folder in sys.path:
        for item in listing(folder) if folder else ():
            if item.endswith(".dist-info"):
                name, _, version = item.removesuffix(".dist-info").partition("-")
                if name in names:
                    found.setdefault(name, version)
    return found


def torch_cuda(folders: Iterable[str]) -> str:
    """The CUDA that the torch in one of these folders is built with: 12.8, NO_CUDA without one, "" where there is no torch.

    Read from its version.py, `cuda: Optional[str] = '12.8'`: an import costs more than a second.
    """
    for folder in folders:
        if folder and (text := read(f"{folder}/torch/version.py")):
            match = re.search(r"^cuda\b[^=\n]*=\s*(?:['\"]([\d.]+)['\"]|None)", text, re.MULTILINE)
            return (match[1] or NO_CUDA) if match else ""
    return ""


def folder(path: str) -> Folder:
    """What can be written to a folder."""
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
        free_files=stat.f_favail if stat.f_files else 1,  # some file systems do not count them
    )


def memlock_bytes() -> int | None:
    """What a process may pin, None without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def openmpi(environ: Mapping[str, str]) -> OpenMpi | None:
    """Open MPI by the mpirun on PATH, else the one beside the interpreter; None without either.

    Its version shows in the daemon that lies beside it. Where none does, or both do, mpirun is asked (10 ms).
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
    # PyPI's wheels: their mpirun is a program that sets the folder for the real one, and their daemons have none.
    moved = any(os.path.exists(f"{folder}/{name}_wrapper") for name in ("orterun", "ompirun"))
    return OpenMpi(file, bool(on_path), major, daemon, os.path.dirname(folder) if moved else "")


def _is_open_mpi(mpirun: str) -> bool:
    """False for another MPI's mpirun in a folder that also holds Open MPI's daemon (Debian's alternatives)."""
    return os.path.basename(os.path.realpath(mpirun)) in ("mpirun", "mpirun.openmpi", "orterun", "prterun")


def _asked_major(mpirun: str) -> int:
    """The major version by mpirun's own words, 0 where it is not Open MPI's."""
    import subprocess

    try:
        done = subprocess.run(
            [mpirun, "--version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r"\(Open ?(?:MPI|RTE)\) (\d+)\.", done.stdout)
    return int(match[1]) if match else 0


def look(environ: Mapping[str, str], root: str = "") -> Machine:
    """One look at this machine."""
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
        image=read(f"{root}{IMAGE}")[:LONGEST_IMAGE],
        nvidia=found,
        visible=seen,
        torch_cuda=torch_cuda(sys.path),
        nccl_plugin=efa.plugin(environ, root) if network else Plugin(),
        efa_nodes_missing=efa.missing_nodes(root),
    )
