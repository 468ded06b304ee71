"""What a supervisor started has ended only when all of it has: threads, memory, and the child's exit status."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

from algorun.host.processes.owner import Owner, alive_in, kill_sessions, processes
from tests.launcher.inside.rank_processes import eventually

LIMIT_S = 30
# Its first thread ends, and another one goes on with all of the process's memory: the kernel shows a zombie.
HEADLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("up", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def state(pid: int) -> str:
    return next((stat.state for stat in processes() if stat.pid == pid), "")


def alone(test: Callable[[Owner, list[tuple[int, int]]], None]) -> Callable[[], None]:
    """The test, in a process that has no other children: an owner takes all of its process's children for its own.

    It gets an owner, and what that has heard of its children's ends.
    """

    def forked() -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(_tried(test))
        done = (0, 0)
        deadline = time.monotonic() + LIMIT_S
        while done == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.01)
            done = os.waitpid(pid, os.WNOHANG)
        if done == (0, 0):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        assert done == (pid, 0), "its own process has written why to stderr"

    forked.__doc__ = test.__doc__
    return forked


def _tried(test: Callable[[Owner, list[tuple[int, int]]], None]) -> int:
    heard: list[tuple[int, int]] = []
    try:
        owner = Owner(lambda pid, returncode: heard.append((pid, returncode)))
        try:
            test(owner, heard)
        finally:
            for stat in owner.left():
                os.kill(stat.pid, signal.SIGKILL)
                os.waitpid(stat.pid, 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def start(owner: Owner, code: str) -> int:
    reader, writer = os.pipe()
    pid = owner.start([sys.executable, "-c", code], os.environ, "/", writer, writer, what="rank 0")
    os.close(writer)
    with open(reader) as output:
        assert output.readline() == "up\n"
    return pid


@alone
def test_a_process_whose_first_thread_has_ended_still_lives(owner, heard):
    pid = start(owner, HEADLESS)
    eventually(lambda: state(pid) == "Z")
    owner.reap()
    assert heard == []
    assert [stat.pid for stat in alive_in([pid])] == [pid]
    assert [stat.pid for stat in owner.left()] == [pid]
    assert owner.kill_left()
    eventually(lambda: not alive_in([pid]))
    owner.reap()
    assert heard == [(pid, -signal.SIGKILL)]
    assert not owner.kill_left()


@alone
def test_its_session_can_be_killed(owner, heard):
    pid = start(owner, HEADLESS)
    eventually(lambda: state(pid) == "Z")
    kill_sessions([pid])
    eventually(lambda: owner.reap() or heard, limit_s=5)
    assert heard == [(pid, -signal.SIGKILL)]


@alone
def test_a_child_that_nobody_has_collected_is_still_left(owner, heard):
    pid = start(owner, "print('up', flush=True)")
    eventually(lambda: state(pid) == "Z")
    assert not alive_in([pid])
    assert owner.kill_left()
    owner.reap()
    assert heard == [(pid, 0)]
    assert not owner.kill_left()


@alone
def test_the_zombie_of_somebody_else_is_not_waited_for(owner, heard):
    """Its parent may collect it whenever it likes; it holds nothing any more."""
    code = (
        "import subprocess, time\nchild = subprocess.Popen(['true'])\n"
        "while open(f'/proc/{child.pid}/stat').read().split()[2] != 'Z': time.sleep(0.01)\n"
        "print('up', flush=True)\ntime.sleep(60)\n"
    )
    pid = start(owner, code)
    assert [stat.pid for stat in owner.left()] == [pid]


@alone
def test_an_owner_that_closes_leaves_nothing(owner, heard):
    pid = start(owner, HEADLESS)
    eventually(lambda: state(pid) == "Z")
    began = time.monotonic()
    owner.close()
    assert heard == [(pid, -signal.SIGKILL)]
    assert time.monotonic() - began < 1


@alone
def test_a_process_aside_outlives_an_attempt_and_ends_with_its_owner(owner, heard):
    reader, writer = os.pipe()
    code = "import time; print('up', flush=True); time.sleep(60)"
    beside = owner.start([sys.executable, "-c", code], os.environ, "/", writer, writer, what="figures", aside=True)
    os.close(writer)
    with open(reader) as output:
        assert output.readline() == "up\n"
    rank = start(owner, code)
    assert [stat.pid for stat in owner.left()] == [rank]
    assert owner.kill_left()
    eventually(lambda: owner.reap() or heard, limit_s=5)
    assert not owner.kill_left()
    assert [stat.pid for stat in alive_in([beside])] == [beside]
    owner.close()
    assert heard == [(rank, -signal.SIGKILL), (beside, -signal.SIGKILL)]
