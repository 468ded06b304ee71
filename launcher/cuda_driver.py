"""Which NVIDIA driver a torch needs, and whether the image brings a part of a newer one. Pure.

CUDA's release notes, "minimum required driver for minor version compatibility": any driver from 525 on runs all of CUDA
12, from 580 on all of CUDA 13. Below that only forward compatibility helps: a newer driver's libcuda.so above an older
kernel driver, on data-center GPUs.
"""

from __future__ import annotations

from .nvidia import COMPAT, Nvidia

LEAST = {11: 450, 12: 525, 13: 580}  # the first number of the driver's version, by CUDA's
WITHOUT_COMPAT = ("GeForce", "TITAN")  # error 804 there: "forward compatibility was attempted on non supported HW"


def major(version: str) -> int:
    """The branch that a version belongs to, 0 of none: 570 of 570.133.20, 12 of CUDA 12.8."""
    first = version.partition(".")[0]
    return int(first) if first.isascii() and first.isdigit() else 0


def least(torch_cuda: str) -> int:
    """The driver branch that a torch with this CUDA needs at least, 0 where that is not known."""
    return LEAST.get(major(torch_cuda), 0)


def compat_helps(found: Nvidia) -> bool:
    """True where ranks should load the image's libcuda: it is of a newer branch than the kernel's driver.

    NVIDIA's container toolkit compares branches too. Above a driver of the same or a newer branch it fails with error 803.
    """
    if not found.devices or not found.driver or any(word in model for model in found.models for word in WITHOUT_COMPAT):
        return False
    return major(found.driver) < major(found.compat)


def too_old(found: Nvidia, torch_cuda: str) -> bool:
    """True where torch can use no GPU with this driver, nor with the image's libcuda above it."""
    offered = major(found.compat) if compat_helps(found) else major(found.driver)
    return 0 < offered < least(torch_cuda)


def with_compat(found: Nvidia, library_path: str) -> str:
    """LD_LIBRARY_PATH for a rank, "" where it stays as it is."""
    folders = library_path.split(":")
    if COMPAT in folders or not compat_helps(found):
        return ""
    return ":".join([COMPAT, *filter(None, folders)])
