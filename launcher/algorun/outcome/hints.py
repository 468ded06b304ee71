"""What helps against a failure: one line, from its own words and from what the machine knows. Pure."""

from __future__ import annotations

from dataclasses import replace

from algorun.control import peer_errors
from algorun.control.failure import Failure
from algorun.control.peer_errors import says
from algorun.machine.failure_snapshot import Evidence
from algorun.machine.preflight import FULL, LITTLE_SHM, MORE_SHM, size
from algorun.machine.probe import Folder

KILLED, BUS_ERROR = 137, 135

LESS_MEMORY = "use a smaller batch, fewer DataLoader workers, or a larger instance"
LESS_DISK = "keep fewer checkpoints, or give the job a larger volume"
INPUTS = "the inputs cannot be written: use /opt/ml/checkpoints, /opt/ml/model or /opt/ml/output/data"

# What a process of a rank's says when one of its own was killed.
CHILD_KILLED = (
    r"DataLoader worker \(pid\S* [\d, ]+\) (is killed by signal: Killed|exited unexpectedly)|died with <Signals\.SIGKILL"
    r"|terminated abruptly|terminated (by|with) signal SIGKILL|ended with 137 before"
)
NO_MEMORY = r"\bMemoryError\b|DefaultCPUAllocator: (can't|not enough)|\[Errno 12\]|Cannot allocate memory"
NO_SHM = (
    r"is killed by signal: Bus error|shared memory object|unable to (mmap|write to file|open shared memory)|shared memory\(shm\)"
    r"|shared memory segment|/dev/shm/nccl|insufficient shared memory"
)
DISK_FULL = (
    r"\[Errno 28\]|No space left on device|database or disk is full|not enough free space to write|\d+ requested and \d+ written"
    r"|PytorchStreamWriter failed writing|enforce fail at inline_container\.cc|basic_ios::clear"
)
QUOTA = r"\[Errno 122\]|Disk quota exceeded"
READ_ONLY = r"\[Errno 30\]|Read-only file system"

# A pattern and the hint, the first that matches. Only where the text itself does not say what to do.
TABLE = (
    (
        r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|Cuda failure (2 )?'out of memory'",
        "GPU memory: use a smaller batch, gradient accumulation or bf16; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
        "where much is reserved but unallocated",
    ),
    (
        r"Torch not compiled with CUDA enabled",
        "this is a torch without CUDA: use the image of ./build.sh build --variant cuda on GPU instances",
    ),
    (
        r"invalid device ordinal|Duplicate GPU detected|has no GPU: this host has",
        "there are more ranks on this host than GPUs that they may use: lower the slots (--slots, processes per host)",
    ),
    (
        peer_errors.FAILED_GPU,
        "this GPU's memory has failed: start the job on another instance, and reset or replace this GPU before it is used "
        "again",
    ),
    (
        r"device-side assert triggered",
        "an index is out of range in a GPU kernel, such as a label or a token that is too large: CUDA_LAUNCH_BLOCKING=1 in "
        "the job's environment, or a run on the CPU, shows the line",
    ),
    (
        peer_errors.CUDA + r"(an illegal memory access|misaligned address|unspecified launch failure)",
        "a GPU kernel has crashed, mostly by an address that is not its own: CUDA_LAUNCH_BLOCKING=1 in the job's "
        "environment shows the call, `compute-sanitizer python train.py` the kernel",
    ),
    (
        peer_errors.CUDA + r"system not yet initialized",
        "the GPUs of this host are not ready: its service nvidia-fabricmanager does not run, or has another version than "
        "the driver; start the job on another instance, or mend the service",
    ),
    (
        r"driver on your system is too old|CUDA driver version is insufficient",
        "this host's NVIDIA driver is older than this torch needs: choose instances with a newer driver or an image with an "
        "older CUDA; `algorun doctor` names the driver",
    ),
    (
        r"No CUDA GPUs are available|Found no NVIDIA driver",
        "no GPU can be used here: `algorun doctor` on the instance tells what of device, driver and toolkit is missing",
    ),
    (
        r"no kernel image is available for execution",
        "this torch has no code for this GPU: choose another instance type or an image with another torch",
    ),
    (
        r"NCCL (error|WARN)|nccl(System|Internal|UnhandledCuda|InvalidUsage)Error|ncclUnhandledCudaError",
        "NCCL_DEBUG=INFO in the job's environment makes NCCL say in the ranks' logs what it tried",
    ),
    (
        r"Address already in use|EADDRINUSE|\[Errno 98\]",
        "another process has that port: take MASTER_PORT from the environment, and port 0 or a free one for servers of "
        "your own (each rank its own)",
    ),
    (
        r"ModuleNotFoundError: No module named",
        "name its package in requirements.txt beside the script; a module of your own must be in source_dir",
    ),
    (r"\[Errno 24\]|Too many open files", "docker run --ulimit nofile=65536, or fewer DataLoader workers and open files"),
    (r"(\[Errno 13\]|Permission denied).*/opt/ml/input", INPUTS),
    (
        r"Temporary failure in name resolution|Network is unreachable",
        "without a way to the Internet (network isolation, a VPC without NAT) packages and models must come with the "
        "image, the code or a channel",
    ),
    (
        r"NoCredentialsError|Unable to locate credentials",
        "no AWS credentials in the container: give the job a role; in network isolation there are none",
    ),
)  # fmt: skip


def explain(failure: Failure, evidence: Evidence) -> Failure:
    """The failure with a hint where there is one to give."""
    if failure.hint:
        return failure
    words = _words(failure)
    if _for_memory(failure, words, evidence):
        message = failure.message
        if failure.kind == "signal" and failure.code == KILLED:
            message = "killed by the kernel: out of memory"
        return replace(failure, message=message, hint=_memory(evidence))
    return replace(failure, hint=_hint(failure, words, evidence))


def _words(failure: Failure) -> str:
    """All that the failure says itself: no source lines, no older parts of a log."""
    found = peer_errors.chain(failure.traceback, mixed=failure.kind != "exception")
    if not found and failure.kind != "exception":
        found = peer_errors.last_lines(failure.traceback)
    return "\n".join([failure.message, *found])


def _for_memory(failure: Failure, words: str, evidence: Evidence) -> bool:
    if evidence.oom_kills > 0 and (failure.code == KILLED or says(CHILD_KILLED, words)):
        return True
    return says(NO_MEMORY, words) and not says(NO_SHM, words)


def _memory(evidence: Evidence) -> str:
    limit = f"a limit of {size(evidence.limit_bytes)}" if evidence.limit_bytes else "an unknown limit"
    if evidence.oom_kills <= 0:
        return f"out of memory ({limit}): {LESS_MEMORY}"
    used = f"peak {size(evidence.peak_bytes)} of {limit}" if evidence.peak_bytes else limit
    whom = "it" if evidence.oom_kills == 1 else f"{evidence.oom_kills} processes"
    return f"out of memory: the kernel killed {whom} ({used}); {LESS_MEMORY}"


def _hint(failure: Failure, words: str, evidence: Evidence) -> str:
    shm = evidence.shm
    little = shm.size_bytes > 0 and shm.free_bytes < LITTLE_SHM
    if (failure.code == BUS_ERROR and little) or says(NO_SHM, words):
        return f"shared memory: {shm.path} has {size(shm.free_bytes)} free of {size(shm.size_bytes)}; {MORE_SHM}"
    if says(READ_ONLY, words):
        closed = [each.path for each in evidence.folders if not each.writable]
        return f"cannot be written: {', '.join(closed)}" if closed else INPUTS
    if says(QUOTA, words):
        return f"disk quota: {LESS_DISK}"
    if says(DISK_FULL, words):
        return _disk(evidence)
    told = "; fix: " in failure.message  # an error of our own entrypoints says what to do
    known = "" if told else next((hint for pattern, hint in TABLE if says(pattern, words)), "")
    full = failure.kind in ("exit", "signal") and any(map(_full, evidence.folders))
    return known or (_disk(evidence) if full else "")  # an exception tells what it could not write


def _full(folder: Folder) -> bool:
    return folder.size_bytes > 0 and (folder.free_bytes <= FULL or folder.free_files == 0)


def _disk(evidence: Evidence) -> str:
    """Which file system is full, by the first of the job's folders on it."""
    full: dict[tuple[int, int], Folder] = {}
    for each in filter(_full, (*evidence.folders, evidence.shm)):
        full.setdefault((each.free_bytes, each.size_bytes), each)
    if not full:
        return f"a write failed, though no folder of the job is full now; {LESS_DISK}"
    told = [
        f"{each.path} has {size(each.free_bytes)} free of {size(each.size_bytes)}"
        + (" and room for no more files" if each.free_files == 0 else "")
        for each in full.values()
    ]
    return f"disk full: {', '.join(told)}; {LESS_DISK}"
