"""Which NVIDIA driver a torch needs, and whether the image brings a part of a newer one. Pure.

CUDA's release notes, "minimum required driver for minor version compatibility": any driver from 525 on runs all of CUDA
12, from 580 on all of CUDA 13. Below that only forward compatibility helps: a newer driver's libcuda.so above an older
kernel driver, on data-center GPUs.
"""

from __future__ import annotations

from .nvidia import COMPAT, Nvidia
from .probe import NO_CUDA

LEAST = {11: 450, 12: 525, 13: 580}  # the first number of the driver's version, by CUDA's
WITHOUT_COMPAT = ("GeForce", "TITAN")  # error 804 there: "forward compatibility was attempted on non supported HW"


def major(version: str) -> int:
    """The branch that a version belongs to, 0 of none: 570 of 570.133.20, 12 of CUDA 12.8."""
    first = version.partition(".")[0]
    return int(first) if first.isascii() and first.isdigit() else 0


def least(torch_cuda: str) -> int:
    """The driver branch that a torch with this CUDA needs at least, 0 where that is not known."""
    return LEAST.get(major(torch_cuda), 0)


def compat_helps(found: Nvidia, torch_cuda: str) -> bool:
    """True where ranks should load the image's libcuda: torch cannot use the kernel's driver, and can use it with this one.

    A driver that is new enough stays alone: minor version compatibility needs no more. Where torch's CUDA is not known, the
    newer of the two is taken. Above a driver of the same or a newer branch the image's libcuda fails with error 803.
    """
    old, new, needs = major(found.driver), major(found.compat), least(torch_cuda)
    if not found.devices or torch_cuda == NO_CUDA or not 0 < old < new:
        return False
    if needs and not old < needs <= new:
        return False
    known = len(found.models) == found.devices  # a GPU without a name may be a GeForce
    return known and not any(word in model for model in found.models for word in WITHOUT_COMPAT)


def too_old(found: Nvidia, torch_cuda: str) -> bool:
    """True where torch can use no GPU with this driver, nor with the image's libcuda above it."""
    offered = major(found.compat) if compat_helps(found, torch_cuda) else major(found.driver)
    return 0 < offered < least(torch_cuda)


def with_compat(found: Nvidia, torch_cuda: str, library_path: str) -> str:
    """LD_LIBRARY_PATH for a rank, "" where it stays as it is."""
    folders = library_path.split(":")
    if COMPAT in folders or not compat_helps(found, torch_cuda):
        return ""
    return ":".join([COMPAT, *filter(None, folders)])
