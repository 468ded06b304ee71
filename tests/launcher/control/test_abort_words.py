"""Why a process ended itself, from the real last lines of many libraries."""

import os
import subprocess
import sys

import pytest

from algorun.control.failures import abort_words
from algorun.control.failures.failure import Failure
from algorun.control.failures.peer_errors import Distance
from algorun.control.member.rank_failures import RankFailures
from algorun.host.output.tail import Tail
from algorun.machine.failure_snapshot import FailureSnapshot
from algorun.outcome.hints import explain

FRAMES = "".join(
    f"frame #{number}: c10d::ProcessGroupNCCL::Watchdog::runLoop() + 0x17b1 (0x7f20e8b07fc1 in /opt/torch/.venv/lib/"
    "python3.12/site-packages/torch/lib/libtorch_cuda.so)\n"
    for number in range(16)
)
TIMED_OUT = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
    "Timeout(ms)=15000)"
)
# One H200, torch 2.11.0+cu130, NCCL 2.28.9, 2026-11-26: a collective behind a kernel that outlasts the timeout.
WATCHDOG = f"""\
[rank0]:[E1126 11:20:39.762650301 ProcessGroupNCCL.cpp:689] [Rank 0] {TIMED_OUT} ran for 15065 milliseconds before timing out.
[rank0]:[E1126 11:20:39.762847703 ProcessGroupNCCL.cpp:2303] [PG ID 0 PG GUID 0(default_pg) Rank 0]  failure detected by \
watchdog at work sequence id: 2 PG status: last enqueued work: 2, last completed work: 1
[rank0]:[E1126 11:20:39.763231683 ProcessGroupNCCL.cpp:733] Stack trace of the failed collective:\x20
#0 all_reduce from /opt/torch/.venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py:3068
#1 wrapper from /opt/torch/.venv/lib/python3.12/site-packages/torch/distributed/c10d_logger.py:83
#2 watched from /opt/algorun/inside/rank_activities.py:152
#3 main from /opt/ml/code/late.py:35
#4 <module> from /opt/ml/code/late.py:42

[rank0]:[E1126 11:20:39.763307814 ProcessGroupNCCL.cpp:2636] [PG ID 0 PG GUID 0(default_pg) Rank 0] First PG on this rank to \
signal dumping.
[rank0]:[E1126 11:20:43.763441818 ProcessGroupNCCL.cpp:750] [Rank 0] Some NCCL operations have failed or timed out. Due to \
the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.
[rank0]:[E1126 11:20:43.763479112 ProcessGroupNCCL.cpp:764] [Rank 0] To avoid data inconsistency, we are taking the entire \
process down.
[rank0]:[E1126 11:20:43.764677325 ProcessGroupNCCL.cpp:2119] [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog \
thread terminated with exception: [Rank 0] {TIMED_OUT} ran for 15065 milliseconds before timing out.
Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:692 (most recent call first):
{FRAMES}
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with exception: [Rank 0] \
{TIMED_OUT} ran for 15065 milliseconds before timing out.
Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:692 (most recent call first):
{FRAMES}
Exception raised from run at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2125 (most recent call first):
{FRAMES}
"""


def ended(tail: str, number: int = 6) -> Failure:
    """The failure of a rank that signal `number` ended, after these lines on stderr."""
    kept = Tail()
    for line in tail.splitlines(keepends=True):
        kept.add(line.encode())
    ranks = RankFailures("algo-1")
    ranks.begin({0: 0}, code="/opt/ml/code")
    failure = ranks.exited(0.0, 0, -number, kept.text)
    assert failure is not None
    return failure


def test_a_time_out_of_nccl_is_told_with_the_line_of_its_collective():
    failure = explain(ended(WATCHDOG), FailureSnapshot())
    assert failure.headline() == (
        f"signal: rank 0 on algo-1, exit 134 (SIGABRT), attempt 1: {TIMED_OUT} (at late.py:35)"
    )
    assert failure.hint.startswith("a rank did not come to this collective")
    assert failure.distance is Distance.WAITED
    assert TIMED_OUT in failure.text()


def test_ranks_that_timed_out_after_other_milliseconds_failed_alike():
    assert ended(WATCHDOG).message == ended(WATCHDOG.replace("15065", "15022")).message


CASES = {
    "terminate called after throwing an instance of 'std::runtime_error'\n  what():  no data in shard 3\n": (
        "std::runtime_error: no data in shard 3"
    ),
    "terminate called after throwing an instance of 'int'\n": "int",
    "terminate called without an active exception\n": "terminate called without an active exception",
    "free(): invalid pointer\n[host:1] *** Process received signal ***\n[host:1] Signal: Aborted (6)\n": (
        "free(): invalid pointer"
    ),
    "double free or corruption (!prev)\n": "double free or corruption (!prev)",
    "corrupted size vs. prev_size\n": "corrupted size vs. prev_size",
    "*** stack smashing detected ***: terminated\n": "*** stack smashing detected ***: terminated",
    "python: pool.c:12: take: Assertion `size > 0' failed.\n": "python: pool.c:12: take: Assertion `size > 0' failed.",
    "F0000 00:00:1732.1 9 client.h:80] Terminating process because the JAX service said so\n": (
        "Terminating process because the JAX service said so"
    ),
    "[rank2]:[F205 18:19:06.383067836 ProcessGroupNCCL.cpp:1614] [PG ID 17 PG GUID 137(GROUP) Rank 2] [PG ID 17 PG GUID "
    "137(GROUP) Rank 2] Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.\n": (
        "Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang."
    ),
    "OMP: Error #15: Initializing libiomp5.so, but found libomp.so already initialized.\nOMP: Hint This means ..\n": (
        "OMP: Error #15: Initializing libiomp5.so, but found libomp.so already initialized."
    ),
    "LLVM ERROR: out of memory\n": "LLVM ERROR: out of memory",
    "thread 'main' panicked at src/lib.rs:7:5:\nindex out of bounds: the len is 3\n": (
        "thread 'main' panicked at src/lib.rs:7:5: index out of bounds: the len is 3"
    ),
    "Fatal Python error: _enter_buffered_busy: could not acquire lock at interpreter shutdown\n": (
        "Fatal Python error: _enter_buffered_busy: could not acquire lock at interpreter shutdown"
    ),
    'Fatal Python error: Aborted\n\nThread 0x7 (most recent call first):\n  File "a.py", line 1 in f\n': "ended by the signal",
    "epoch 3\nloss 0.3\n": "ended by the signal",
    "": "ended by the signal",
}


@pytest.mark.parametrize(("tail", "message"), CASES.items())
def test_what_libraries_print_before_they_abort(tail, message):
    assert ended(tail).message == message
    assert ended(tail, 9).message.startswith("not sent by the launcher")  # somebody else's signal says nothing of it


DUMP = '{}\n\nCurrent thread 0x00007f (most recent call first):\n  File "{}", line 3 in f\n  File "/opt/ml/code/a.py", line 9 in g\n'


@pytest.mark.parametrize(
    ("tail", "place"),
    [
        (DUMP.format("Fatal Python error: Segmentation fault", "/usr/lib/python3.12/json/decoder.py"), "a.py:9"),
        (DUMP.format("Fatal Python error: Segmentation fault", "/opt/ml/code/lib/b.py"), "lib/b.py:3"),
        (
            DUMP.format("Fatal Python error: Aborted", "/home/me/b.py").replace("/opt/ml/code", "/home/me"),
            "/home/me/b.py:3",
        ),
        (DUMP.format("Timeout (0:00:30)!", "/opt/ml/code/lib/b.py"), ""),  # of a process that went on
    ],
)
def test_a_crash_is_told_with_its_line(tail, place):
    assert ended(tail, 11).place == place


PROGRAMS = {
    "import ctypes; ctypes.CDLL(None).free(1234567 * 16)": 11,
    "import faulthandler, ctypes; faulthandler.enable(); ctypes.string_at(1)": 11,
    "import ctypes; lib = ctypes.CDLL(None); p = lib.malloc; p.restype = ctypes.c_void_p; a = p(64); "
    "lib.free(ctypes.c_void_p(a)); lib.free(ctypes.c_void_p(a))": 6,
    "import os; os.abort()": 6,
}


@pytest.mark.parametrize(("source", "number"), PROGRAMS.items())
def test_processes_that_really_crash(source, number, tmp_path):
    script = tmp_path / "crash.py"
    script.write_text(source)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "MALLOC_CHECK_": "3"},
    )
    assert done.returncode == -number, done.stderr
    failure = ended(done.stderr, number)
    if "malloc" in source:
        assert failure.message.startswith(("free(): ", "double free"))
    if "faulthandler" in source:
        assert abort_words.place(done.stderr, str(tmp_path)) == "crash.py:1"
