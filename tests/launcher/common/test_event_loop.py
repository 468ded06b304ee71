"""The event loop: what is forgotten is not called any more."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from algorun.common.event_loop import READ, Loop


def test_a_callback_that_forgets_another_one_of_the_same_round_is_the_last():
    """Both are ready at once. A connection that another one replaces is closed so: its own event would find it closed."""
    loop, called = Loop(), []
    pairs = [socket.socketpair() for _ in range(2)]
    for number, (near, far) in enumerate(pairs):
        far.sendall(b"x")

        def call(_: int, number: int = number, other: socket.socket = pairs[1 - number][0]) -> None:
            called.append(number)
            loop.forget(other)
            loop.stop()

        loop.watch(near, READ, call)
    loop.run()
    assert len(called) == 1
    for end in (*pairs[0], *pairs[1]):
        end.close()
    loop.close()


def test_a_callback_that_another_one_of_the_same_round_replaces_is_not_called():
    loop, called = Loop(), []
    pairs = [socket.socketpair() for _ in range(2)]
    for near, far in pairs:
        far.sendall(b"x")

        def call(_: int, near: socket.socket = near) -> None:
            called.append("first")
            for other, _ in pairs:
                if other is not near:
                    loop.watch(other, READ, lambda _: (called.append("replaced"), loop.stop()))

        loop.watch(near, READ, call)
    loop.run()
    assert called == ["first", "replaced"]
    for end in (*pairs[0], *pairs[1]):
        end.close()
    loop.close()


AFTER_THE_LOOP = """
import os, signal, sys, threading, time
from algorun.common.event_loop import Loop, hold_signals

hold_signals()
loop = Loop()
with loop.signals(dict.fromkeys((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), lambda: None)):
    threading.Thread(target=time.sleep, args=(30,), daemon=True).start()  # a look-up that never ends: it takes signals
    loop.after(0.05, loop.stop)
    loop.run()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)[: int(sys.argv[1])]:
    os.kill(os.getpid(), number)
print("the verdict", flush=True)
os._exit(7)
"""


@pytest.mark.parametrize("signals", [1, 3])
def test_a_stop_after_the_verdict_changes_no_exit_code(signals):
    done = subprocess.run(
        [sys.executable, "-c", AFTER_THE_LOOP, str(signals)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "the verdict\n", "")
