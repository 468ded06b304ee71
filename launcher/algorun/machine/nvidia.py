"""NVIDIA's driver and GPUs, read from /dev and /proc: loads no library, starts no program. `root` as in probe."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from algorun.common.fast_dataclasses import dataclass

from . import libraries
from .system_files import listing, read_text

PROC = "/proc/driver/nvidia"
COMPAT = "/usr/local/cuda/compat"  # packages such as cuda-compat-12-8 put the libcuda of a newer driver here


@dataclass(frozen=True, slots=True)
class Nvidia:
    """The driver and the GPUs of this host; a text is "" if there is none."""

    devices: int = 0  # number of files /dev/nvidia0, /dev/nvidia1, ..
    driver: str = ""  # version of the kernel's driver
    models: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()  # of all devices; empty if one of them is unknown
    slices: tuple[int, ...] = ()  # number of MIG slices of each device, in the order of `uuids`
    library: str = ""  # the libcuda.so.1 that the loader finds
    compat: str = ""  # version of the libcuda in COMPAT


def look(environ: Mapping[str, str], root: str = "") -> Nvidia:
    """Reads the driver and the GPUs of this host."""
    minors = {name.removeprefix("nvidia") for name in listing(f"{root}/dev") if re.fullmatch(r"nvidia\d+", name)}
    if not minors:
        return Nvidia(driver=_driver(root))
    described = [_fields(read_text(f"{root}{PROC}/gpus/{name}/information")) for name in listing(f"{root}{PROC}/gpus")]
    # /proc shows a container all GPUs of the machine; /dev may hold only some of them.
    ours = [fields for fields in described if fields.get("Device Minor") in minors]
    uuids = [fields.get("GPU UUID", "") for fields in ours]
    order = [fields["Device Minor"] for fields in ours]
    if len(order) != len(minors):
        order = sorted(minors, key=int)
    # A GPU that sleeps shows "GPU-??..".
    known = len(uuids) == len(minors) and all(re.fullmatch(r"GPU-[0-9a-f-]+", uuid) for uuid in uuids)
    return Nvidia(
        devices=len(minors),
        driver=_driver(root),
        models=tuple(fields["Model"] for fields in ours if "Model" in fields),
        uuids=tuple(uuids) if known else (),
        slices=tuple(_slices(f"{root}{PROC}/capabilities/gpu{minor}/mig") for minor in order),
        library=libraries.find("libcuda.so.1", environ, root),
        compat=_compat(root),
    )


def _driver(root: str) -> str:
    """The version in a line such as `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  ..` or
    `.. Open Kernel Module for x86_64  570.133.20 ..`."""
    match = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)", read_text(f"{root}{PROC}/version"))
    return match[1] if match else ""


def _fields(text: str) -> dict[str, str]:
    """The values by name, from lines such as `GPU UUID: <tab> GPU-c6398fd0-9366-8e15-5d6a-369da852f85b`."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _slices(folder: str) -> int:
    """The number of MIG's compute instances: folders gi1/ci0, gi2/ci0, .."""
    return sum(
        len([name for name in listing(f"{folder}/{instance}") if re.fullmatch(r"ci\d+", name)])
        for instance in listing(folder)
        if re.fullmatch(r"gi\d+", instance)
    )


def _compat(root: str) -> str:
    versions = [
        name.removeprefix("libcuda.so.") for name in listing(f"{root}{COMPAT}") if name.startswith("libcuda.so.")
    ]
    whole = [version for version in versions if "." in version]  # libcuda.so.1 is a link
    return whole[0] if len(whole) == 1 and os.path.exists(f"{root}{COMPAT}/libcuda.so.1") else ""
