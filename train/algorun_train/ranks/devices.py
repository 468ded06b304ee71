"""Chooses the device that a rank computes on, and checks that it can be used, before the ranks join."""

import ctypes
import os
import re
import warnings
from collections.abc import Callable, Mapping

import torch

from algorun_train.common.errors import UserError

from .world import World

VISIBLE = "CUDA_VISIBLE_DEVICES"
NONE_ON_PURPOSE = ("", "none", "void", "nodevfiles")  # Slurm sets the last one for a job without GPUs
GIVEN = "NVIDIA_VISIBLE_DEVICES"  # the GPUs that NVIDIA's container toolkit gives to a container
GIVEN_NONE = ("", "none", "void")
CUDA_ON_CPU = "ALGORUN_CUDA_ON_CPU"  # cuda_on_cpu.py: the user has chosen the CPU
NONE_LEFT = "No CUDA GPUs are available"  # torch's error if the driver works and shows no GPU
ON_CPU = f"{VISIBLE}= (empty) for training on the CPU"
GIB = 2**30
MOSTLY_FREE = 0.9  # of a GPU's memory: the rest is the driver's and this process's own context (0.6 of 79 GiB, H100)


def device_files(dev: str = "/dev") -> list[str]:
    """The device files of NVIDIA's GPUs on this host, such as /dev/nvidia0."""
    try:
        names = os.listdir(dev)
    except OSError:
        return []
    return sorted(f"{dev}/{name}" for name in names if re.fullmatch(r"nvidia\d+", name))


def driver_library() -> bool:
    """Whether the driver's library, libcuda.so.1, can be loaded."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def hidden_on_purpose(environ: Mapping[str, str]) -> bool:
    """Whether the user has chosen the CPU: CUDA_VISIBLE_DEVICES is empty, negative or a word for none.

    NVIDIA_VISIBLE_DEVICES with the value void, none or "" counts too, but only without the driver's library: a privileged
    container sees the device files even if it gets no GPU. With the library the value says nothing: CDI sets `void` and
    still gives GPUs.
    """
    if environ.get(CUDA_ON_CPU, "0") not in ("", "0"):
        return True
    if environ.get(GIVEN, "all").strip().lower() in GIVEN_NONE and not driver_library():
        return True
    if VISIBLE not in environ:
        return False
    first = environ[VISIBLE].split(",")[0].strip().lower()
    return first in NONE_ON_PURPOSE or first.startswith("-")


def choose_device(world: World, gpus: int, one_visible: bool, visible: str = "") -> str:
    """`cuda:<local rank>` if this host has GPUs, else `cpu`. Pure.

    `gpus` counts the GPUs that torch can use. `one_visible`: CUDA_VISIBLE_DEVICES, whose value is `visible`, names one GPU
    for this rank alone; then it is `cuda:0`. Raises UserError if the host has GPUs, but none for this local rank.
    """
    if gpus == 0:
        return "cpu"
    if gpus == 1 and one_visible:
        return "cuda:0"
    if world.local_rank >= gpus:
        by = f" ({VISIBLE}={visible})" if visible else ""
        slice_only = "; CUDA shows a process one MIG slice" if visible.startswith("MIG-") else ""
        raise UserError(
            f"LOCAL_RANK {world.local_rank} has no GPU: this host has {gpus}{by}{slice_only}; "
            f"fix: start at most {gpus} ranks per host, or {ON_CPU}"
        )
    return f"cuda:{world.local_rank}"


def find(world: World, environ: Mapping[str, str], warn: Callable[[str], None], dev: str = "/dev") -> torch.device:
    """This rank's device. A GPU becomes torch's current device. `warn` gets a text if other processes use the GPU too.

    The device is the CPU if the host has no device files of NVIDIA's, or if the user has hidden the GPUs. Raises UserError,
    with the driver's own text, if the host has GPUs that this process cannot use.
    """
    gpus, refused = count(environ, dev)
    if refused:
        raise UserError(refused)
    visible = environ.get(VISIBLE, "")
    device = torch.device(choose_device(world, gpus, bool(visible) and "," not in visible, visible))
    if device.type == "cuda":
        _take(device, warn)
    return device


def count(environ: Mapping[str, str], dev: str = "/dev") -> tuple[int, str]:
    """The number of GPUs that torch can use, and "". If there should be some and torch can use none: 0, and the reason."""
    files = device_files(dev)
    with warnings.catch_warnings():
        if files:  # `_unusable` reports the same, with a fix
            warnings.filterwarnings("ignore", "CUDA initialization", UserWarning)
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus == 0 and files and not hidden_on_purpose(environ):
        return 0, _unusable(files, environ)
    return gpus, ""


def _unusable(files: list[str], environ: Mapping[str, str]) -> str:
    """The error text if none of this host's GPUs can be used."""
    have = f"this host has {len(files)} GPU{'s' * (len(files) > 1)} ({files[0]}{', ..' * (len(files) > 1)})"
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"torch {torch.__version__} is built without CUDA, and {have}; allowed: a torch with CUDA, or the CPU by choice; "
            f"fix: the image of ./build.sh build --variant cuda, or {ON_CPU}"
        )
    words = _words()
    visible = environ.get(VISIBLE, "")
    if visible and NONE_LEFT in words:
        return (
            f"{VISIBLE}={visible!r} leaves no GPU: {have}, and torch says: {words}; allowed: their numbers from 0, or UUIDs "
            f"of nvidia-smi -L, each once; fix: unset it for all GPUs, or {ON_CPU}"
        )
    return (
        f"{have}, and torch can use none: {words}; "
        f"fix: `algorun doctor` on this host tells what is missing, or {ON_CPU}"
    )


def _words() -> str:
    """The error of torch and the driver when CUDA is started."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return _first_line(error)
    return "no error, and no GPU"


def _first_line(error: BaseException) -> str:
    """The first line of an error. The lines below it are C++ frames, and what torch advises."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _take(device: torch.device, warn: Callable[[str], None]) -> None:
    """Starts CUDA on this rank's GPU. UserError if another process uses it exclusively, or has taken all of its memory."""
    try:
        torch.cuda.set_device(device)
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError as error:
        raise UserError(
            f"GPU {device} cannot be used: {_first_line(error)}; allowed: a GPU that no other process has for itself, with "
            "free memory; fix: nvidia-smi names the processes, and its compute mode must be Default"
        ) from None
    if free + torch.cuda.memory_reserved(device) < MOSTLY_FREE * total:  # a script may have used the GPU before
        warn(
            f"warning: GPU {device} has {free / GIB:.1f} of {total / GIB:.1f} GiB free before training: another process may "
            "use it, nvidia-smi names it"
        )


def identity(device: torch.device) -> str:
    """The UUID of a GPU. "" for the CPU, and if the UUID is all zeros, as that of a virtual GPU may be."""
    if device.type != "cuda":
        return ""
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    return uuid if uuid.strip("0-") else ""
