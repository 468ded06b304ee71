"""What the kernel counts of real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from algorun.machine import process_counters
from algorun.machine.process_counters import count, received_by_socket

BURN = "end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
PROGRAMS = {
    "main": BURN,
    "thread": f"def burn():\n    import time\n    {BURN.strip().replace(chr(10), chr(10) + '    ')}\nt = threading.Thread(target=burn); t.start(); t.join()\n",
    "child": f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {'import time' + chr(10) + BURN!r}], check=True)\n",
    "writes": "open(os.devnull, 'wb', buffering=0).write(bytes(1 << 20))\n",
    "sleeps": "time.sleep(0.3)\n",
}


def started(text):
    """A process that has run this text, and waits now; with what was counted before."""
    program = f"import os, sys, threading, time\nprint(flush=True)\nsys.stdin.readline()\n{text}print(flush=True)\nsys.stdin.readline()\n"
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def before_and_after(process):
    """The counts of a program when it has printed its first line, and when it has printed the second, for which it is asked."""
    process.stdout.readline()
    before = count(process.pid, {})
    process.stdin.write("\n")
    process.stdin.flush()
    process.stdout.readline()
    return before, count(process.pid, {})


@pytest.mark.parametrize("what", PROGRAMS)
def test_each_kind_of_work_is_counted_where_it_belongs(what):
    with started(PROGRAMS[what]) as process:
        before, after = before_and_after(process)
        process.stdin.write("\n")
    main_s, others_s = after.main_s - before.main_s, after.others_s - before.others_s
    assert (main_s > 0.25) == (what == "main")
    assert (others_s > 0.25) == (what in ("child", "thread"))
    assert (after.moved - before.moved >= 1 << 20) == (what == "writes")
    assert after.born == before.born
    assert not after.stopped
    assert not after.on_gpu


@pytest.mark.parametrize(
    ("name", "counts"), [("timer_manager", False), ("worker.io", False), ("ray::Trainer.st", True)]
)
def test_threads_that_wake_up_all_the_time_are_left_out_by_their_names(name, counts):
    named = f"import ctypes; ctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0)\n    "  # PR_SET_NAME
    text = (
        PROGRAMS["thread"]
        .replace("import time\n    ", f"import time\n    {named}")
        .replace("t.join()", "time.sleep(1)")
    )
    text = text.replace("while time.process_time() < end: pass", "while True: pass").replace(
        "target=burn", "target=burn, daemon=True"
    )
    with started(text) as process:
        before, after = before_and_after(process)
        process.stdin.write("\n")
    assert (after.others_s - before.others_s > 0.25) == counts


def test_a_thread_that_lives_counts_beside_the_main_thread():
    text = "def burn():\n    while True: pass\nthreading.Thread(target=burn, daemon=True).start()\ntime.sleep(0.4)\n"
    with started(text) as process:
        before, after = before_and_after(process)
        process.kill()
    assert after.others_s - before.others_s > 0.2


def test_bytes_over_tcp_are_those_of_the_process_s_own_sockets():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            before = count(os.getpid(), received_by_socket())
            sender.sendall(bytes(100_000))
            left = 100_000
            while left:
                left -= len(receiver.recv(left))
            tcp = received_by_socket()
            if not tcp:
                pytest.skip("this kernel does not tell of sockets")
            assert count(os.getpid(), tcp).received - before.received == 100_000
            assert tcp[os.fstat(receiver.fileno()).st_ino] == 100_000


@pytest.mark.parametrize(
    ("family", "loopback"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["IPv4", "IPv6"]
)
def test_many_sockets_come_in_several_messages(family, loopback):
    try:
        server = socket.create_server((loopback, 0), family=family, backlog=400)
    except OSError as error:  # a container's network has no IPv6 unless its engine was told to give it one
        pytest.skip(f"no server at {loopback}: {error}")
    with server:
        pairs = [(socket.create_connection(server.getsockname()[:2]), server.accept()[0]) for _ in range(150)]
        found = received_by_socket()
        inodes = {os.fstat(each.fileno()).st_ino for pair in pairs for each in pair}
        for pair in pairs:
            for each in pair:
                each.close()
    if not found:
        pytest.skip("this kernel does not tell of sockets")
    assert inodes <= found.keys()


def test_a_stopped_process_and_one_that_has_ended():
    with started("") as process:
        process.stdout.readline()
        os.kill(process.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 10
        while not count(process.pid, {}).stopped:
            assert time.monotonic() < deadline
        process.kill()
    assert count(process.pid, {}) is None


def test_threads_in_which_libraries_spin_are_left_out():
    names = ("NCCL Progress10", "pt_nccl_watchdg", "pt_gloo_runloop", "cuda-EvtHandlr", "cuda00001400006")
    assert all(process_counters.SPINNING.match(name) for name in names)
    assert not any(process_counters.SPINNING.match(name) for name in ("python3", "pt_autograd_0", "ThreadPoolExec"))


@pytest.mark.parametrize("data", [b"", b"\0" * 7, b"\xff" * 40, b"\0" * 200])
def test_an_answer_that_is_cut_short_ends_the_dump(data):
    found: dict[int, int] = {}
    process_counters.read_dump(data, found)
    assert len(found) <= 1
