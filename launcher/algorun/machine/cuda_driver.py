"""Which NVIDIA driver a torch build needs, and whether the image's own libcuda helps if the driver is too old. Pure.

CUDA's release notes, "minimum required driver for minor version compatibility": driver 525 or newer runs every CUDA 12,
driver 580 or newer runs every CUDA 13. On an older driver only forward compatibility helps: ranks load the libcuda.so
of a newer driver. NVIDIA supports this on data-center GPUs only.
"""

from __future__ import annotations

from .nvidia import COMPAT, Nvidia
from .probe import NO_CUDA

LEAST = {11: 450, 12: 525, 13: 580}  # major version of CUDA: major version of the oldest driver that runs it
WITHOUT_COMPAT = ("GeForce", "TITAN")  # error 804 there: "forward compatibility was attempted on non supported HW"


def major(version: str) -> int:
    """The major version: 570 for "570.133.20", 12 for "12.8", 0 for "" and anything else without a number."""
    first = version.partition(".")[0]
    return int(first) if first.isascii() and first.isdigit() else 0


def least(torch_cuda: str) -> int:
    """The major version of the oldest driver that runs this CUDA; 0 if unknown."""
    return LEAST.get(major(torch_cuda), 0)


def compat_helps(found: Nvidia, torch_cuda: str) -> bool:
    """True if ranks should load the image's libcuda: the driver is too old for torch, and the image's libcuda is not.

    If torch's CUDA is unknown, the image's libcuda is used when it is newer than the driver. It is never used with a
    driver of the same or a newer major version: CUDA then fails with error 803.
    """
    old, new, needs = major(found.driver), major(found.compat), least(torch_cuda)
    if not found.devices or torch_cuda == NO_CUDA or not 0 < old < new:
        return False
    if needs and not old < needs <= new:
        return False
    known = len(found.models) == found.devices  # a GPU of unknown model may be a GeForce
    return known and not any(word in model for model in found.models for word in WITHOUT_COMPAT)


def too_old(found: Nvidia, torch_cuda: str) -> bool:
    """True if torch can use no GPU, neither with this driver nor with the image's libcuda."""
    offered = major(found.compat) if compat_helps(found, torch_cuda) else major(found.driver)
    return 0 < offered < least(torch_cuda)


def with_compat(found: Nvidia, torch_cuda: str, library_path: str) -> str:
    """LD_LIBRARY_PATH for a rank so that it loads the image's libcuda; "" if `library_path` need not change."""
    folders = library_path.split(":")
    if COMPAT in folders or not compat_helps(found, torch_cuda):
        return ""
    return ":".join([COMPAT, *filter(None, folders)])
