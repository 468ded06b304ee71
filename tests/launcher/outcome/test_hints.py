"""Hints: from a failure's own words and from what the machine knows."""

from __future__ import annotations

import pytest

from algorun.common.fast_dataclasses import replace
from algorun.control.failures.failure import SHOWN, Failure
from algorun.machine.failure_snapshot import FailureSnapshot
from algorun.machine.probe import Folder
from algorun.outcome.hints import RULES, Case, explain, rule_for, words_of
from tests.conftest import ROOT

GIB, MIB = 1024**3, 1024**2
ROOMY = Folder("/opt/ml/model", writable=True, free_bytes=9 * GIB, size_bytes=30 * GIB)
CALM = FailureSnapshot(0, 2 * GIB, 8 * GIB, Folder("/dev/shm", True, 8 * GIB, 8 * GIB), (ROOMY,))
OOM = replace(CALM, oom_kills=1, peak_bytes=int(7.9 * GIB))
SMALL_SHM = replace(CALM, shm=Folder("/dev/shm", True, 0, 64 * MIB))
FULL = replace(CALM, folders=(ROOMY, Folder("/opt/ml/checkpoints", True, 0, 4 * GIB)))
# As torch puts an error of NCCL's, by its last error.
NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3699, unhandled cuda error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
)
KILLED = Failure("signal", "algo-1", 137, "not sent by the launcher: ..", 0)
BUS = Failure("signal", "algo-1", 135, "ended by the signal", 0)


def raised(words: str) -> Failure:
    trace = f"Traceback (most recent call last):\n  File 'x', line 1, in y\n    z\n{words}"
    return Failure("exception", "algo-1", 1, words, 0, trace, explains_itself="; fix: " in words)


def hint(failure: Failure, snapshot: FailureSnapshot = CALM) -> str:
    return explain(failure, snapshot).hint


def test_a_kill_by_the_kernel_names_peak_and_limit():
    told = explain(KILLED, OOM)
    assert told.message == "killed by the kernel: out of memory"
    assert told.hint == (
        "out of memory: the kernel killed 1 process (peak 7.9 GiB of a limit of 8.0 GiB); "
        "use a smaller batch, fewer DataLoader workers, or a larger instance"
    )
    assert told.text().splitlines()[-1] == f"hint: {told.hint}"


def test_a_kill_by_somebody_else_has_no_hint():
    assert explain(KILLED, CALM) == KILLED


def test_a_shell_passes_its_childs_kill_on():
    told = explain(Failure("exit", "algo-1", 137, "Killed", 0, "Killed\n"), OOM)
    assert told.hint.startswith("out of memory: the kernel killed 1 process")


def test_an_engine_that_the_kernel_killed_is_explained():
    told = explain(Failure("engine", "algo-1", 1, "torchrun ended with 137 before its ranks"), OOM)
    assert told.hint.startswith("out of memory: the kernel killed 1 process")


def test_a_segfault_beside_a_kill_for_memory_is_a_segfault():
    assert hint(Failure("signal", "algo-1", 139, "ended by the signal", 0), OOM) == ""


@pytest.mark.parametrize(
    "words",
    [
        "RuntimeError: DataLoader worker (pid 93) is killed by signal: Killed. ",
        "RuntimeError: DataLoader worker (pid(s) 93, 94) exited unexpectedly",
        "subprocess.CalledProcessError: Command '['tar']' died with <Signals.SIGKILL: 9>.",
        "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly while ..",
    ],
)
def test_a_childs_kill_is_explained_where_the_kernel_counted_one(words):
    assert hint(raised(words), OOM).startswith("out of memory: the kernel killed 1 process (peak 7.9 GiB")
    assert hint(raised(words)) == ""


def test_a_bus_error_is_explained_by_a_small_shared_memory():
    expected = "shared memory: /dev/shm has 0 MiB free of 64 MiB; docker run --shm-size 1g, or fewer DataLoader workers"
    worker = "RuntimeError: DataLoader worker (pid 93) is killed by signal: Bus error. It is possible that ..."
    assert hint(BUS, SMALL_SHM) == expected
    assert hint(raised(worker), SMALL_SHM) == expected
    assert hint(BUS) == ""
    assert hint(BUS, FailureSnapshot()) == ""  # /dev/shm could not be looked at


# The words of an exception, what the machine knows, and how the hint begins.
ROWS = [
        ("OSError: [Errno 28] No space left on device: '/x'", FULL, "disk full: /opt/ml/checkpoints has 0 MiB free of 4.0 GiB"),
        ("RuntimeError: PytorchStreamWriter failed writing file data/0", FULL, "disk full: /opt/ml/checkpoints"),
        ("OSError: [Errno 28] No space left on device", CALM, "a write failed, though no folder of the job is full now"),
        ("OSError: [Errno 28] No space left on device", SMALL_SHM, "disk full: /dev/shm has 0 MiB free of 64 MiB"),
        ("RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598", FULL,
         "disk full: /opt/ml/checkpoints has"),
        ("RuntimeError: unable to allocate shared memory(shm) for file </torch_10_1>: No space left on device (28)", SMALL_SHM,
         "shared memory: /dev/shm has 0 MiB free of 64 MiB"),
        ("OSError: [Errno 122] Disk quota exceeded", CALM, "disk quota"),
        ("OSError: [Errno 30] Read-only file system: '/opt/ml/input/data/train/x'", CALM, "the input folders are read-only"),
        ("OSError: [Errno 30] Read-only file system", replace(CALM, folders=(replace(ROOMY, writable=False),)),
         "not writable: /opt/ml/model"),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 64. GiB\nMemoryError", CALM,
         "out of memory (a limit of 8.0 GiB)"),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you "
         "tried to allocate 64 bytes. Error code 12 (Cannot allocate memory)", CALM, "out of memory"),
        ("RuntimeError: unable to mmap 400 bytes from file </torch_1_2>: Cannot allocate memory (12)", SMALL_SHM,
         "shared memory: /dev/shm has 0 MiB"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.", CALM, "GPU memory: "),
        (NCCL + "Cuda failure 2 'out of memory'", CALM, "GPU memory: "),
        (NCCL + "Cuda failure 'out of memory'", CALM, "GPU memory: "),
        (NCCL + "Cuda failure 214 'uncorrectable ECC error encountered'", CALM, "this GPU's memory has failed"),
        (NCCL + "Cuda failure 35 'CUDA driver version is insufficient for CUDA runtime version'", CALM,
         "this host's NVIDIA driver is older"),
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", CALM, "this GPU's memory has failed"),
        ("torch.AcceleratorError: CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously "
         "reported at some other API call", CALM, "an index is out of range"),
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", CALM, "a GPU kernel crashed"),
        ("RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered", CALM, "a GPU kernel crashed"),
        ("torch.AcceleratorError: CUDA error: misaligned address", CALM, "a GPU kernel crashed"),
        ("torch.AcceleratorError: CUDA error: unspecified launch failure", CALM, "a GPU kernel crashed"),
        (NCCL + "Cuda failure 700 'an illegal memory access was encountered'", CALM, "a GPU kernel crashed"),
        ("RuntimeError: CUDA driver error: an illegal memory access was encountered", CALM, "a GPU kernel crashed"),
        ("CUDA error (flash_fwd_launch_template.h:188): an illegal memory access was encountered", CALM, "a GPU kernel crashed"),
        ("after cudaDeviceSynchronize: cudaErrorIllegalAddress: an illegal memory access was encountered", CALM,
         "a GPU kernel crashed"),
        ("io.cpp:9:3: runtime error: load of misaligned address 0x7ff for type 'int', which requires 4 byte alignment", CALM, ""),
        ("PermissionError: illegal memory access by the sandboxed plugin", CALM, ""),
        ("torch.AcceleratorError: CUDA error: system not yet initialized", CALM, "the GPUs of this host are not ready"),
        ("urllib.error.HTTPError: HTTP Error 802: refused", CALM, ""),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE)", CALM, "a rank did not come"),
        ("mysql.Error: SQL Error 8025: no such table", CALM, ""),
        ("RuntimeError: payment system not yet initialized", CALM, ""),
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
         "NumCudaDevices() that might have already set an error? Error 802: system not yet initialized", CALM,
         "the GPUs of this host are not ready"),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by "
         "downloading and installing a new version", CALM, "this host's NVIDIA driver is older"),
        ("RuntimeError: Found no NVIDIA driver on your system.", CALM, "no GPU is usable here"),
        ("AssertionError: Torch not compiled with CUDA enabled", CALM, "this torch is built without CUDA"),
        ("torch.AcceleratorError: CUDA error: invalid device ordinal", CALM, "this host has more ranks"),
        ("RuntimeError: No CUDA GPUs are available", CALM, "no GPU is usable here"),
        ("torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device", CALM,
         "this torch has no code"),
        ("torch.distributed.DistBackendError: NCCL error in: .. unhandled system error\nncclSystemError: ..", CALM, "set NCCL_DEBUG=INFO"),
        ("OSError: [Errno 98] Address already in use", CALM, "another process uses that port"),
        ("ModuleNotFoundError: No module named 'torch.sagemaker'", CALM, "torch.sagemaker, version 2 of AWS's model parallel"),
        ("ModuleNotFoundError: No module named 'horovod'", CALM, "Horovod does not build with today's frameworks: for TensorFlow"),
        ("ModuleNotFoundError: No module named 'horovod.keras'", CALM, "Horovod does not build with today's frameworks: "),
        ("InvalidArgumentError: .. on XLA_GPU_JIT: PyFunc (No registered 'PyFunc' OpKernel for XLA_GPU_JIT devices", CALM, "XLA cannot"),
        ("ModuleNotFoundError: No module named 'einops'", CALM, "name its package in requirements.txt"),
        ("RuntimeError: can't start new thread", CALM, "no further process or thread can start: docker run --pids-limit"),
        ("bash: fork: retry: Resource temporarily unavailable", CALM, "no further process or thread can start"),
        ("OpenBLAS blas_thread_init: pthread_create failed for thread 3 of 8: Resource temporarily unavailable", CALM, "no further"),
        ("OSError: [Errno 24] Too many open files: 'x'", CALM, "too many open files: docker run --ulimit nofile=65536"),
        ("PermissionError: [Errno 13] Permission denied: '/opt/ml/input/data/x'", CALM, "the input folders are read-only"),
        ("socket.gaierror: [Errno -3] Temporary failure in name resolution", CALM, "no Internet access"),
        ("botocore.exceptions.NoCredentialsError: Unable to locate credentials", CALM, "no AWS credentials"),
        ("train.sh: line 2: $'\\r': command not found", CALM, "a script has Windows line endings (CRLF): "),
        ("train.sh: line 2: syntax error near unexpected token `$'do\\r''", CALM, "a script has Windows line endings (CRLF): "),
        ("/usr/bin/env: ‘bash\\r’: No such file or directory", CALM, "a script has Windows line endings (CRLF): "),
        ("./x.sh: /bin/bash^M: bad interpreter: No such file or directory", CALM, "a script has Windows line endings (CRLF): "),
        ("KeyError: '\\r'", CALM, ""),
        ("error: GPU cuda:0 cannot be used: CUDA error: out of memory; fix: nvidia-smi names the processes", CALM, ""),
        ("ValueError: bad", CALM, ""),
        ("KeyError: 'killed'", OOM, ""),
        ("ConnectionRefusedError: [Errno 111] Connection refused", CALM, ""),
]  # fmt: skip


@pytest.mark.parametrize(("words", "snapshot", "expected"), ROWS)
def test_words_and_their_hints(words, snapshot, expected):
    told = hint(raised(words), snapshot)
    assert told.startswith(expected)
    assert bool(told) == bool(expected)
    assert "\n" not in told


def test_what_the_watchdog_of_nccl_says_of_the_gpu_is_explained():
    """It ends the rank with a signal; the last lines are those of a C++ exception."""
    tail = (
        "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG ID 0 PG GUID 0(default_pg) "
        "Rank 1] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was "
        "encountered\nCUDA kernel errors might be asynchronously reported at some other API call\n"
    )
    assert hint(Failure("signal", "algo-1", 134, "ended by the signal", 0, tail)).startswith("a GPU kernel crashed")


def test_source_lines_and_old_log_lines_do_not_count():
    trace = "Traceback (most recent call last):\n  File 'x', line 1, in y\n    fail('No space left on device')\nValueError: bad"
    assert hint(Failure("exception", "algo-1", 1, "ValueError: bad", 0, trace), FULL) == ""
    log = "warning: Address already in use, trying the next\n" + "step\n" * 30 + "bad data\n"
    assert hint(Failure("exit", "algo-1", 1, "bad data", 0, log)) == ""
    assert hint(Failure("exit", "algo-1", 1, "bad data", 0, "x: Address already in use\nbad data\n")) != ""


def test_a_hint_that_is_there_already_stays():
    assert hint(replace(KILLED, hint="mine"), OOM) == "mine"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_has_a_row_that_it_applies_to(rule):
    ends = [(KILLED, OOM), (BUS, SMALL_SHM), (Failure("exit", "algo-1", 3, "no message on stderr", 0), FULL),
            (Failure("exit", "algo-1", 137, "Killed", 0, "Killed\n"), OOM)]  # fmt: skip
    cases = [Case(failure, words_of(failure), snapshot) for failure, snapshot in ends]
    cases += [Case(raised(words), words, snapshot) for words, snapshot, _ in ROWS]
    assert rule in [rule_for(case) for case in cases]


FIXED = [rule.hint for rule in RULES if isinstance(rule.hint, str) and not rule.always]


@pytest.mark.parametrize("text", FIXED)
def test_every_hint_is_documented(text):
    assert f"| {text} |" in (ROOT / "docs" / "troubleshooting.md").read_text()


@pytest.mark.parametrize("text", FIXED)
def test_every_hint_leaves_room_for_the_failure(text):
    assert len(text) < SHOWN // 4
    assert text == text.strip()


def test_a_full_disk_is_named_where_a_rank_says_nothing_of_it():
    assert hint(Failure("exit", "algo-1", 3, "no message on stderr", 0), FULL).startswith(
        "disk full: /opt/ml/checkpoints has 0 MiB free of 4.0 GiB"
    )
    assert hint(Failure("mismatch", "algo-1", 64, "program differs"), FULL) == ""
    assert hint(raised("ModuleNotFoundError: No module named 'x'"), FULL).startswith("name its package")
