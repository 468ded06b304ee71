"""Hints: one line that says what helps against a failure, from its text and from the failure snapshot. Pure.

The first rule of `RULES` that applies gives the hint. CONTRIBUTING.md says how to add one. Write one only where the
failure itself does not say what to do.
"""

from __future__ import annotations

from collections.abc import Callable

from algorun.common.fast_dataclasses import dataclass, replace
from algorun.control.failures import peer_errors
from algorun.control.failures.failure import Failure
from algorun.control.failures.peer_errors import says
from algorun.control.failures.same_failure import CHILD_KILLED
from algorun.machine.failure_snapshot import FailureSnapshot
from algorun.machine.preflight import FULL, LITTLE_SHM, MORE_SHM, size
from algorun.machine.probe import Folder

KILLED, BUS_ERROR = 137, 135
OURS = ("configuration", "mismatch", "preflight", "setup")  # kinds of failures whose message says what to do

LESS_MEMORY = "use a smaller batch, fewer DataLoader workers, or a larger instance"
LESS_DISK = "keep fewer checkpoints, or give the job a larger volume"
INPUTS = "the input folders are read-only: write to /opt/ml/checkpoints, /opt/ml/model or /opt/ml/output/data"

NO_MEMORY = r"\bMemoryError\b|DefaultCPUAllocator: (can't|not enough)|\[Errno 12\]|Cannot allocate memory"
NO_SHM = (
    r"is killed by signal: Bus error|shared memory object|unable to (mmap|write to file|open shared memory)|shared memory\(shm\)"
    r"|shared memory segment|/dev/shm/nccl|insufficient shared memory"
)
DISK_FULL = (
    r"\[Errno 28\]|No space left on device|database or disk is full|not enough free space to write|\d+ requested and \d+ written"
    r"|PytorchStreamWriter failed writing|enforce fail at inline_container\.cc|basic_ios::clear"
)
# Not `[Errno 11]` alone, which is also a lock that another process holds.
NO_PROCESS = (
    r"can't start new thread|\bfork: (retry: )?Resource temporarily unavailable|pthread_create\b[^\n]*(Resource temporarily|failed)"
    r"|thread constructor failed|Failed to create thread|unable to create (new )?(native )?thread"
)
QUOTA = r"\[Errno 122\]|Disk quota exceeded"
READ_ONLY = r"\[Errno 30\]|Read-only file system"


@dataclass(frozen=True, slots=True)
class Case:
    """A failure and what is known about it."""

    failure: Failure
    words: str  # its message, and the last lines of its traceback
    snapshot: FailureSnapshot  # the failure snapshot of its host


@dataclass(frozen=True, slots=True)
class HintRule:
    """One hint, and when it applies: if `pattern` is found in the case's words and `condition` is true."""

    name: str
    hint: str | Callable[[Case], str]  # a fixed text, or a function that makes the text
    pattern: str = ""  # regular expression, upper and lower case alike
    condition: Callable[[Case], bool] = lambda case: True
    message: str = ""  # replaces the failure's message
    always: bool = False  # applies also if the failure's message says already what to do

    def applies(self, case: Case) -> bool:
        if not self.always and (case.failure.explains_itself or case.failure.kind in OURS):
            return False
        return (not self.pattern or says(self.pattern, case.words)) and self.condition(case)

    def text(self, case: Case) -> str:
        return self.hint if isinstance(self.hint, str) else self.hint(case)


def explain(failure: Failure, snapshot: FailureSnapshot) -> Failure:
    """The failure with a hint, if a rule applies."""
    if failure.hint:
        return failure
    case = Case(failure, words_of(failure), snapshot)
    rule = rule_for(case)
    return replace(failure, hint=rule.text(case), message=rule.message or failure.message) if rule else failure


def rule_for(case: Case) -> HintRule | None:
    """The first rule that applies, None without one."""
    return next((rule for rule in RULES if rule.applies(case)), None)


def words_of(failure: Failure) -> str:
    """The failure's message and the errors of its traceback, without source lines and older lines of the log."""
    found = peer_errors.chain(failure.traceback, mixed=failure.kind != "exception")
    if not found and failure.kind != "exception":
        found = peer_errors.last_lines(failure.traceback)
    return "\n".join([failure.message, *found])


# -- conditions ----------------------------------------------------------------------------------------------------


def _kernel_killed_the_rank(case: Case) -> bool:
    return case.snapshot.oom_kills > 0 and case.failure.kind == "signal" and case.failure.code == KILLED


def _kernel_killed_a_process(case: Case) -> bool:
    return case.snapshot.oom_kills > 0 and (case.failure.code == KILLED or says(CHILD_KILLED, case.words))


def _not_shared_memory(case: Case) -> bool:
    return not says(NO_SHM, case.words)


def _shared_memory(case: Case) -> bool:
    shm = case.snapshot.shm
    little = shm.size_bytes > 0 and shm.free_bytes < LITTLE_SHM
    return (case.failure.code == BUS_ERROR and little) or says(NO_SHM, case.words)


def _folder_is_read_only(case: Case) -> bool:
    return any(not each.writable for each in case.snapshot.folders)


def _disk_is_full(case: Case) -> bool:
    """True if a disk is full and the rank ended without an exception. An exception would name the failed write."""
    return case.failure.kind in ("exit", "signal") and any(map(_full, case.snapshot.folders))


def _full(folder: Folder) -> bool:
    return folder.size_bytes > 0 and (folder.free_bytes <= FULL or folder.free_files == 0)


# -- texts ---------------------------------------------------------------------------------------------------------


def _memory(case: Case) -> str:
    snapshot = case.snapshot
    if snapshot.oom_kills <= 0:
        return f"out of memory ({_limit(snapshot)}): {LESS_MEMORY}"
    return f"out of memory: {kernel_killed(snapshot)}; {LESS_MEMORY}"


def kernel_killed(snapshot: FailureSnapshot) -> str:
    """How many processes the kernel has killed for memory, and what the limit is."""
    limit = _limit(snapshot)
    used = f"peak {size(snapshot.peak_bytes)} of {limit}" if snapshot.peak_bytes else limit
    killed = "1 process" if snapshot.oom_kills == 1 else f"{snapshot.oom_kills} processes"
    return f"the kernel killed {killed} ({used})"


def _limit(snapshot: FailureSnapshot) -> str:
    return f"a limit of {size(snapshot.limit_bytes)}" if snapshot.limit_bytes else "an unknown limit"


def _shm(case: Case) -> str:
    shm = case.snapshot.shm
    return f"shared memory: {shm.path} has {size(shm.free_bytes)} free of {size(shm.size_bytes)}; {MORE_SHM}"


def _read_only(case: Case) -> str:
    return f"not writable: {', '.join(each.path for each in case.snapshot.folders if not each.writable)}"


def _disk(case: Case) -> str:
    """Names each full file system by the first folder of the job on it."""
    full: dict[tuple[int, int], Folder] = {}
    for each in filter(_full, (*case.snapshot.folders, case.snapshot.shm)):
        full.setdefault((each.free_bytes, each.size_bytes), each)
    if not full:
        return f"a write failed, though no folder of the job is full now; {LESS_DISK}"
    named = [
        f"{each.path} has {size(each.free_bytes)} free of {size(each.size_bytes)}"
        + (" and no free inodes" if each.free_files == 0 else "")
        for each in full.values()
    ]
    return f"disk full: {', '.join(named)}; {LESS_DISK}"


RULES = (
    HintRule(
        "rank killed for memory",
        _memory,
        condition=_kernel_killed_the_rank,
        message="killed by the kernel: out of memory",
        always=True,
    ),
    HintRule("process killed for memory", _memory, condition=_kernel_killed_a_process, always=True),
    HintRule("out of memory", _memory, pattern=NO_MEMORY, condition=_not_shared_memory, always=True),
    HintRule("shared memory", _shm, condition=_shared_memory, always=True),
    HintRule("folder is read-only", _read_only, pattern=READ_ONLY, condition=_folder_is_read_only, always=True),
    HintRule("inputs are read-only", INPUTS, pattern=READ_ONLY, always=True),
    HintRule("disk quota", f"disk quota: {LESS_DISK}", pattern=QUOTA, always=True),
    HintRule("disk is full", _disk, pattern=DISK_FULL, always=True),
    HintRule(
        "GPU memory",
        "GPU memory: use a smaller batch, gradient accumulation or bf16; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
        "if much is reserved but unallocated",
        pattern=r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|Cuda failure (2 )?'out of memory'",
    ),
    HintRule(
        "torch without CUDA",
        "this torch is built without CUDA: use the image of ./build.sh build --variant cuda on GPU instances",
        pattern=r"Torch not compiled with CUDA enabled",
    ),
    HintRule(
        "more ranks than GPUs",
        "this host has more ranks than usable GPUs: lower the ranks per host (--slots, processes per host)",
        pattern=r"invalid device ordinal|Duplicate GPU detected|has no GPU: this host has",
    ),
    HintRule(
        "failed GPU",
        "this GPU's memory has failed: start the job on another instance, and reset or replace this GPU before it is used "
        "again",
        pattern=peer_errors.FAILED_GPU,
    ),
    HintRule(
        "device-side assert",
        "an index is out of range in a GPU kernel, such as a label or a token that is too large: CUDA_LAUNCH_BLOCKING=1 in "
        "the job's environment, or a run on the CPU, shows the line",
        pattern=r"device-side assert triggered",
    ),
    HintRule(
        "crashed kernel",
        "a GPU kernel crashed, usually because it used a wrong address: CUDA_LAUNCH_BLOCKING=1 in the job's "
        "environment shows the call, `compute-sanitizer python train.py` shows the kernel",
        pattern=peer_errors.CUDA + r"(an illegal memory access|misaligned address|unspecified launch failure)",
    ),
    HintRule(
        "GPUs not ready",
        "the GPUs of this host are not ready: the service nvidia-fabricmanager does not run, or its version differs from "
        "the driver; start the job on another instance, or repair the service",
        pattern=peer_errors.CUDA + r"system not yet initialized",
    ),
    HintRule(
        "old driver",
        "this host's NVIDIA driver is older than this torch needs: choose instances with a newer driver or an image with an "
        "older CUDA; `algorun doctor` names the driver",
        pattern=r"driver on your system is too old|CUDA driver version is insufficient",
    ),
    HintRule(
        "no GPU",
        "no GPU is usable here: `algorun doctor` on the instance shows whether device, driver or container toolkit is missing",
        pattern=r"No CUDA GPUs are available|Found no NVIDIA driver",
    ),
    HintRule(
        "no kernel image",
        "this torch has no code for this GPU: choose another instance type or an image with another torch",
        pattern=r"no kernel image is available for execution",
    ),
    HintRule(
        "NCCL time-out",
        "a rank did not come to this collective, or a GPU was busy with what stands before it for that long; the limit is the "
        "timeout= of init_process_group",
        pattern=peer_errors.TIMED_OUT,
    ),
    HintRule(
        "NCCL",
        "set NCCL_DEBUG=INFO in the job's environment: NCCL then writes to the ranks' logs what it tried",
        pattern=r"NCCL (error|WARN)|nccl(System|Internal|UnhandledCuda|InvalidUsage)Error|ncclUnhandledCudaError",
    ),
    HintRule(
        "port in use",
        "another process uses that port: take MASTER_PORT from the environment; for servers of your own use port 0, or "
        "one port per rank",
        pattern=r"Address already in use|EADDRINUSE|\[Errno 98\]",
    ),
    HintRule(
        "Windows line endings",
        "a script has Windows line endings (CRLF): sed -i 's/\\r$//' on it; in .gitattributes *.sh text eol=lf",
        pattern=r"\$'[^'\n]*\\r'|env: [^\n]*\\r|\^M: bad interpreter",
    ),
    HintRule(
        "version 2 of smdistributed.modelparallel",
        "torch.sagemaker, version 2 of AWS's model parallel library, is closed: ddp --model FOLDER --tp N trains a Hugging Face "
        "folder so (docs/models.md)",
        pattern=r"ModuleNotFoundError: No module named 'torch\.sagemaker'",
    ),
    HintRule(
        "no Horovod",
        "Horovod does not build with today's frameworks: for TensorFlow add tensorflow==2.21.0 to requirements.txt, and the image "
        "offers horovod.tensorflow (docs/compat.md); with torch use torch.distributed",
        pattern=r"ModuleNotFoundError: No module named 'horovod",
    ),
    HintRule(
        "messages under XLA",
        "XLA cannot compile messages between ranks: leave jit_compile out of the tf.function around them, and give "
        "model.compile(.., jit_compile=False)",
        pattern=r"No registered '(Eager)?PyFunc' OpKernel for XLA",
    ),
    HintRule(
        "missing module",
        "name its package in requirements.txt beside the script; a module of your own must be in source_dir",
        pattern=r"ModuleNotFoundError: No module named",
    ),
    HintRule(
        "processes and threads",
        "no further process or thread can start: docker run --pids-limit 4096 or ulimit -u, or fewer DataLoader workers and "
        "threads (OMP_NUM_THREADS=1)",
        pattern=NO_PROCESS,
    ),
    HintRule(
        "open files",
        "too many open files: docker run --ulimit nofile=65536, or fewer DataLoader workers",
        pattern=r"\[Errno 24\]|Too many open files",
    ),
    HintRule(
        "inputs are not writable",
        INPUTS,
        pattern=r"(\[Errno 13\]|Permission denied).*/opt/ml/input",
    ),
    HintRule(
        "no Internet",
        "no Internet access (network isolation, a VPC without NAT): packages and models must come with the "
        "image, the code or a channel",
        pattern=r"Temporary failure in name resolution|Network is unreachable",
    ),
    HintRule(
        "no credentials",
        "no AWS credentials in the container: give the job a role; in network isolation there are none",
        pattern=r"NoCredentialsError|Unable to locate credentials",
    ),
    HintRule("disk is full, unsaid", _disk, condition=_disk_is_full, always=True),
)
