"""Which device a rank computes on, and whether it can: decided before the ranks join."""

import ctypes
import os
import re
import warnings
from collections.abc import Callable, Mapping

import torch

from algorun_train.errors import UserError

from .world import World

VISIBLE = "CUDA_VISIBLE_DEVICES"
NONE_ON_PURPOSE = ("", "none", "void", "nodevfiles")  # the last is what Slurm sets for a job without GPUs
GIVEN = "NVIDIA_VISIBLE_DEVICES"  # what NVIDIA's container toolkit gives to a container
GIVEN_NONE = ("", "none", "void")
CUDA_ON_CPU = "ALGORUN_CUDA_ON_CPU"  # compat/smdistributed/cuda_on_cpu.py: the user has named the CPU
NONE_LEFT = "No CUDA GPUs are available"  # torch, where the driver works and shows no GPU
ON_CPU = f"{VISIBLE}= (empty) for training on the CPU"
GIB = 2**30
MOSTLY_FREE = 0.9  # of a GPU's memory: the rest is the driver's and this process's own context (0.6 of 79 GiB, H100)


def device_files(dev: str = "/dev") -> list[str]:
    """NVIDIA's GPUs by their device files, such as /dev/nvidia0."""
    try:
        names = os.listdir(dev)
    except OSError:
        return []
    return sorted(f"{dev}/{name}" for name in names if re.fullmatch(r"nvidia\d+", name))


def driver_library() -> bool:
    """True where the driver's libcuda.so.1 can be loaded."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def hidden_on_purpose(environ: Mapping[str, str]) -> bool:
    """True where the user has chosen the CPU: CUDA_VISIBLE_DEVICES is empty, negative or a word for none.

    NVIDIA_VISIBLE_DEVICES of void, none or nothing counts too, if the driver's library is absent: a privileged container
    sees the device files even then. With the library the word means nothing: CDI sets `void` and gives GPUs.
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
    """`cuda:<local rank>` where there are GPUs, else `cpu`. `one_visible`: each rank was given a single GPU to see.

    Raises UserError for a rank without a GPU on a host that has some.
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
    """This rank's device, made the current one. `warn` hears of a GPU that others use too.

    Raises UserError, with the driver's words, where the host has GPUs that this process cannot use. A host without
    NVIDIA's device files, and one whose GPUs the user has hidden, train on the CPU.
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
    """The GPUs that torch can use here. Where there are none and should be some: 0, and why, with the driver's words."""
    files = device_files(dev)
    with warnings.catch_warnings():
        if files:  # the error has torch's words, and more
            warnings.filterwarnings("ignore", "CUDA initialization", UserWarning)
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus == 0 and files and not hidden_on_purpose(environ):
        return 0, _unusable(files, environ)
    return gpus, ""


def _unusable(files: list[str], environ: Mapping[str, str]) -> str:
    """Why none of this host's GPUs can be used, and what to do."""
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
    """What torch and the driver say when they are told to start."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return _first_line(error)
    return "no error, and no GPU"


def _first_line(error: BaseException) -> str:
    """An error without the C++ frames and the advice that torch adds below."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _take(device: torch.device, warn: Callable[[str], None]) -> None:
    """Starts CUDA on this rank's GPU. UserError where another process has it for itself, or all of its memory."""
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
    """The UUID of a GPU; "" for the CPU, and where it is all zeros: a virtual GPU's may not be known."""
    if device.type != "cuda":
        return ""
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    return uuid if uuid.strip("0-") else ""
