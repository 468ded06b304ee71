"""Real texts of failures: which only say that a peer has gone, and which merely look like it."""

from __future__ import annotations

import pytest

from algorun.control.failures.failure import Failure
from algorun.control.failures.peer_errors import Distance, last_lines
from algorun.control.hub.failure_reports import likeliest_cause

TYPICAL = "This is typically caused by a remote worker crashing. Check the logs of the remote worker .. GLHF! 🏖️"
GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"
CLOSED = f"RuntimeError: {GLOO}pair.cc:553] Connection closed by peer [127.0.0.1]:907. {TYPICAL}"
STORE = "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"
WATCHDOG = (
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: "
)
# torch 2.10 to 2.13, as jobs on GPUs have printed it.
RAN = "WorkNCCL(SeqNum=78, OpType=BROADCAST, NumelIn=80, NumelOut=80, Timeout(ms)=600000) ran for 600096 milliseconds"
DUMP = (
    "[rank3]:[E710 18:00:32.603241927 ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID 0(default_pg) Rank 3] Received a dump "
    "signal due to a collective timeout from this local rank and we will try our best to dump the debug info. Last "
    "enqueued NCCL work: 59998, last completed NCCL work: 59957.This is most likely caused by incorrect usages of "
    "collectives, e.g., wrong sizes used across ranks, the order of collectives is not same for all ranks or the "
    "scheduled collective, for some reason, didn't run. Additionally, this can be caused by GIL deadlock or other reasons "
    "such as network errors or bugs in the communications library (e.g. NCCL), etc. \n"
)
MONITOR = (
    "[rank3]:[F710 18:08:32.707469047 ProcessGroupNCCL.cpp:1725] [PG ID 0 PG GUID 0(default_pg) Rank 3] [PG ID 0 PG GUID "
    "0(default_pg) Rank 3] Terminating the process after attempting to dump debug info, due to {}.\n"
)
STUCK = (
    "[rank3]:[E1229 20:37:13.091528310 ProcessGroupNCCL.cpp:1306] [PG ID 0 PG GUID 0(default_pg) Rank 3] "
    "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives. \n"
)
# What ncclSystemError looks like where a peer over EFA is gone: the watchdog finds it, no call of the script's.
SYSTEM = (
    "NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclSystemError: "
    "System call (e.g. socket, malloc) or external library call failed or device error. \nLast error:\n\n"
)
ASYNC = (
    "[rank7]:[E814 01:57:12.984417033 ProcessGroupNCCL.cpp:742] [Rank 7] Collective WorkNCCL(SeqNum=1915265, "
    f"OpType=ALLREDUCE, Timeout(ms)=600000) raised the following async exception: {SYSTEM}"
)
# With PYTHONFAULTHANDLER=1: all threads, behind the last words.
THREAD = "".join(f'  File "/usr/lib/python3.11/threading.py", line {n} in wait\n' for n in range(20))
FAULT = (
    f"Fatal Python error: Aborted\n\nThread 0x00007f7960c3e6c0 (most recent call first):\n{THREAD}\n"
    f"Thread 0x00007f7961a85b80 [python] (most recent call first):\n  <no Python frame>\n{THREAD}\n"
    "Extension modules: numpy._core._multiarray_umath, torch._C (total: 33)\n"
)
CAPTURED = "C++ CapturedTraceback:\n" + "".join(f"#{n} std::_Function_handler<void ()> from :0\n" for n in range(4, 30))
# JAX 0.10.2: rank 0, which serves the coordination, was killed.
COORDINATION = (
    "E1125 02:37:15.149280   27528 coordination_service_agent.cc:289] Polled an error from coordination service (this can "
    "be an error from this or another task).\n"
    "F1125 02:37:15.149306   27528 client.h:80] Terminating process because the JAX distributed service detected fatal "
    "errors. This most likely indicates that another task died; see the other task logs for more details. Disable Python "
    "buffering, i.e. `python -u`, to be sure to see all the previous output. absl::Status: UNAVAILABLE: Failed to send "
    "RPC to coordination service. Either the leader task was preempted/died/restarted unexpectedly or this task is "
    "experiencing network issues. Check earlier logs from 1) this task, 2) the leader (usually slice 0 task 0), and 3) "
    "cluster scheduler to debug further.\n"
    "Additional GRPC error information from remote target coordination_service while calling "
    "/xla.coordination.CoordinationService/PollForError:\n:UNKNOWN:Error received from peer  {grpc_status:14, "
    'grpc_message:"Socket closed"}\n'
)
ABSL = (
    "*** Check failure stack trace: ***\n"
    + "    @     0x7f960f9040ee  xla::CoordinationServiceAgent::SetError()\n" * 30
)
XLA = "UNKNOWN: Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/pair.cc:547] "
FRAMES = "".join(f"frame #{n}: <unknown function> + 0xd44a3 (0x7f6b3c2d44a3 in /lib/libc10.so)\n" for n in range(30))


def traceback(*chain: str, source: str = "dist.all_reduce(x)") -> str:
    """As the rank's own hook sends it: the oldest exception first."""
    head = f'Traceback (most recent call last):\n  File "train.py", line 9, in step\n    {source}\n'
    return "\n\n".join(head + words for words in chain)


def raised(*chain: str, source: str = "dist.all_reduce(x)", host: str = "algo-1") -> Failure:
    return Failure("exception", host, 1, chain[-1].splitlines()[0], 0, traceback(*chain, source=source))


def ended(code: int, tail: str, kind: str = "") -> Failure:
    lines = [line for line in tail.splitlines() if line.strip()]
    return Failure(kind or ("signal" if code > 128 else "exit"), "algo-1", code, lines[-1] if lines else "", 0, tail)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        # torch 2.13 with gloo: all_reduce, barrier, broadcast, recv, send, all_gather_object, DDP's backward
        (raised(CLOSED), Distance.PEER),
        (raised(f"RuntimeError: {GLOO}pair.cc:534] Connection closed by peer [10.0.0.7]:907"), Distance.PEER),
        (raised(f"RuntimeError: {GLOO}pair.cc:547] Read error [10.0.0.7]:907: Connection reset by peer"), Distance.PEER),
        (raised(f"RuntimeError: {GLOO}pair.cc:446] writev [10.0.0.7]:907: Broken pipe"), Distance.PEER),
        (raised(f"RuntimeError: {GLOO}unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete"),
         Distance.WAITED),
        (raised(f"RuntimeError: {GLOO}unbound_buffer.cc:129] Timed out waiting 6000ms for send operation to complete"),
         Distance.WAITED),
        (raised("RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 1800000 ms\n Original exception: \n"
                f"{GLOO}pair.cc:553] Connection closed by peer [127.0.0.1]:44259."), Distance.PEER),
        # TCPStore: get, wait, new_group and init, when rank 0 has gone or a key never comes
        (raised(STORE), Distance.PEER),
        (raised("torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of "
                "(algo-1, 29500). The client socket has failed to connect to 10.0.0.7:29500 (errno: 111 - Connection "
                "refused)."), Distance.PEER),
        (raised("torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to "
                "connect to (algo-1, 29500)."), Distance.PEER),
        (raised("torch.distributed.DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//never"),
         Distance.WAITED),
        # NCCL by way of torch
        (raised("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited or "
                "there was a network error, NCCL version 2.27.5\nncclRemoteError: A call failed possibly due to a network "
                "error or a remote process exiting prematurely."), Distance.PEER),
        (raised("torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1. "), Distance.PEER),
        (ended(134, WATCHDOG + "NCCL error: remote process exited or there was a network error\n" + FRAMES),
         Distance.PEER),
        (ended(134, WATCHDOG + "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)\n" + FRAMES),
         Distance.WAITED),
        (ended(134, DUMP + MONITOR.format("collective timeout or exception")), Distance.WAITED),
        (ended(134, DUMP * 11 + MONITOR.format("collective timeout or exception")), Distance.WAITED),
        (ended(134, STUCK + MONITOR.format("ProcessGroupNCCL watchdog hang")), Distance.WAITED),
        (ended(134, WATCHDOG + f"[Rank 1] Watchdog caught collective operation timeout: {RAN}\n" + CAPTURED + FAULT),
         Distance.WAITED),
        (ended(134, WATCHDOG + f"[Rank 1] Watchdog caught collective operation timeout: {RAN}\n" + FRAMES + FAULT),
         Distance.WAITED),
        (raised("torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.  Original reason for failure "
                f"was: [Rank 1] Watchdog caught collective operation timeout: {RAN} before timing out."), Distance.WAITED),
        (raised("torch.distributed.DistBackendError: NCCL timeout in communicator initialization."), Distance.WAITED),
        (ended(134, ASYNC + WATCHDOG + SYSTEM + FRAMES), Distance.PEER),
        (ended(134, WATCHDOG + SYSTEM + FRAMES + FAULT), Distance.PEER),
        # Open MPI 4.1 and mpi4py
        (ended(1, "ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[9373,0],0] on node algo-1\n",
               "engine"), Distance.PEER),
        (ended(1, "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 11 (Segmentation fault).\n",
               "engine"), Distance.PEER),
        (ended(1, "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n"), Distance.PEER),
        (raised("mpi4py.MPI.Exception: MPI_ERR_PROC_FAILED: Process Failure"), Distance.PEER),
        (ended(1, "", "engine"), Distance.WAITED),
        # JAX 0.10.2 on CPUs
        (ended(134, COORDINATION + ABSL), Distance.PEER),
        (raised(f"ValueError: {XLA}Connection closed by peer [127.0.0.1]:59095"), Distance.PEER),
        # TensorFlow 2.21, MultiWorkerMirroredStrategy on CPUs
        (raised("tensorflow.python.framework.errors_impl.UnavailableError: {{function_node __wrapped__CollectiveReduceV2_N"
                "ordering_token_1_device_/job:worker/replica:0/task:1/device:CPU:0}} Collective ops is aborted by: Socket "
                "closed\nAdditional GRPC error information from remote target /job:worker/replica:0/task:0 while calling "
                '/tensorflow.WorkerService/RecvBuf:\n:UNKNOWN:Error received from peer  {grpc_status:14, '
                'grpc_message:"Socket closed"}'), Distance.PEER),
        # caught and raised again by the user's own code, whose chain begins with the peer's end
        (raised(CLOSED, "train.Failed: step 17 failed"), Distance.PEER),
        # a log with two tracebacks that are not linked: the last one counts
        (ended(1, traceback("KeyError: 'retried'") + "\nretry\n" + traceback(CLOSED) + "\n"), Distance.PEER),
        (ended(1, traceback(CLOSED) + "\nretry\n" + traceback("KeyError: 'lr'") + "\n"), Distance.CAUSE),
        (ended(1, traceback(CLOSED) + "\n\nDuring handling of the above exception, another exception occurred:\n\n"
               + traceback("KeyError: 'lr'") + "\n"), Distance.PEER),
        # ---- none of these is a peer's end
        (raised("ConnectionRefusedError: [Errno 111] Connection refused", source="db.connect()"), Distance.CAUSE),
        (raised("redis.exceptions.ConnectionError: Error 111 connecting to db:6379. Connection refused."), Distance.CAUSE),
        (raised("botocore.exceptions.ConnectionClosedError: Connection was closed before we received a valid response "
                "from endpoint URL"), Distance.CAUSE),
        (raised("BrokenPipeError: [Errno 32] Broken pipe", source="pool.map(decode, names)"), Distance.CAUSE),
        (raised("TimeoutError: timed out", source="socket.create_connection(database)"), Distance.CAUSE),
        (raised("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
                "port: 29500, code: -98, name: EADDRINUSE, message: address already in use"), Distance.CAUSE),
        (raised("ValueError: bad", source='raise ValueError("bad")  # gloo/transport: Connection closed by peer'),
         Distance.CAUSE),
        (raised("ValueError: bad", CLOSED), Distance.CAUSE),  # the user's error first, then the barrier in a finally:
        (raised("RuntimeError: The size of tensor a (3) must match the size of tensor b (4)"), Distance.CAUSE),
        (ended(139, f"{CLOSED}\nFatal Python error: Segmentation fault\n"), Distance.CAUSE),
        (ended(137, f"WARNING retrying after {STORE}\n"), Distance.CAUSE),
        (ended(7, ""), Distance.CAUSE),
        (raised("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, " + SYSTEM), Distance.CAUSE),
        (ended(134, WATCHDOG + "CUDA error: device-side assert triggered\n" + FRAMES + FAULT), Distance.CAUSE),
        (ended(134, FAULT), Distance.CAUSE),
        (raised("tensorflow.python.framework.errors_impl.InvalidArgumentError: Collective ops is aborted by: Shape mismatch"),
         Distance.CAUSE),
        (ended(134, "F1125 02:37:15.1 1 pjrt_client.cc:80] Check failed: out of memory\n" + ABSL), Distance.CAUSE),
        (Failure("lost", "algo-2", 66, "host lost: connection closed"), Distance.CAUSE),
    ],
)  # fmt: skip
def test_where_a_failure_stands(failure, expected):
    assert failure.distance is expected
    assert failure.secondary == (expected is not Distance.CAUSE)


def test_what_waited_in_vain_goes_before_what_saw_a_peer_vanish():
    waited = ended(134, WATCHDOG + "[Rank 1] Watchdog caught collective operation timeout\n")
    assert likeliest_cause([(1.0, raised(CLOSED)), (9.0, waited)]) is waited
    assert likeliest_cause([(1.0, waited), (9.0, raised("ValueError: bad"))]).message == "ValueError: bad"


def test_the_crash_is_the_root_and_not_the_abort_that_it_led_to():
    aborting, crash = ended(1, ""), ended(139, "*** Process received signal ***\n")
    assert likeliest_cause([(1.0, aborting), (1.2, crash)]) is crash
    assert likeliest_cause([(1.0, aborting), (1.2, raised(CLOSED))]) is aborting
    assert likeliest_cause([(1.0, ended(7, "bad input\n")), (1.2, crash)]).code == 7


def test_a_segfault_of_one_rank_beats_mpi_abort_by_another():
    told = ended(1, "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n")
    crash = ended(139, "[vm:18123] Signal: Segmentation fault (11)\n")
    assert likeliest_cause([(1.0, told), (1.4, crash)]) is crash


@pytest.mark.parametrize(
    ("words", "bundled", "spoilt"),
    [
        ("OSError: [Errno 28] No space left on device: '/opt/ml/model/model.pt'", False, True),
        ("OSError: [Errno 122] Disk quota exceeded", False, True),
        ("OSError: [Errno 30] Read-only file system: '/opt/ml/input/x'", False, True),
        ("OSError: [Errno 5] Input/output error", False, True),
        ("OSError: 1000000 requested and 253952 written", False, True),
        ("RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0", False, True),
        ("RuntimeError: PytorchStreamWriter failed writing file data/0: file write failed", False, True),
        ("RuntimeError: Parent directory /opt/ml/checkpoints/9 does not exist.", False, True),
        ("safetensors_rust.SafetensorError: I/O error: No space left on device (os error 28)", False, True),
        ("ValueError: bad", False, False),
        ("ValueError: bad", True, True),
        (CLOSED, True, False),
        (CLOSED, False, False),
        ("KeyError: 28", False, False),
    ],
)
def test_only_a_write_that_failed_spoils_a_stop(words, bundled, spoilt):
    assert raised(words).makes_stop_fail(bundled=bundled) is spoilt


def test_a_write_that_failed_counts_wherever_it_is_in_the_chain():
    full = "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"
    assert raised("RuntimeError: basic_ios::clear: iostream error", full).makes_stop_fail(bundled=False)
    assert raised("OSError: [Errno 28] No space left on device", "train.Failed: save").makes_stop_fail(bundled=False)
    source = 'raise ValueError("bad")  # no space left on device'
    assert not raised("ValueError: bad", source=source).makes_stop_fail(bundled=False)


def test_leaving_with_a_code_or_by_a_signal_during_a_stop_is_no_failed_save():
    assert not ended(143, "").makes_stop_fail(bundled=True)
    assert not ended(1, "OSError: [Errno 28] No space left on device").makes_stop_fail(bundled=False)


@pytest.mark.parametrize(
    "line", ["#1 ERROR the reason", "# 3 files are missing", "#12 of 40 from the queue", "frame #7: cannot be decoded"]
)
def test_a_line_of_the_user_s_own_is_no_frame_of_a_stack(line):
    assert last_lines(f"{line}\n{CAPTURED}{FRAMES}more") == [line, "C++ CapturedTraceback:", "more"]


@pytest.mark.parametrize(
    ("words", "failed"),
    [
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", True),
        ("NCCL error in: x.cpp:1\nLast error:\nCuda failure 'uncorrectable ECC error encountered'", True),
        ("Cuda failure 214 'uncorrectable ECC error encountered'", True),
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 214: uncorrectable ECC error encountered",
            True,
        ),
        ("INFO dcgm: no uncorrectable ECC errors found", False),
        ("INFO no uncorrectable ECC error encountered so far", False),
    ],
)
def test_only_what_cuda_says_of_its_memory_counts(words, failed):
    assert raised(words).of_gpu is failed
    assert ended(1, f"{words}\n").of_gpu is failed
