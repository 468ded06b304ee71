"""Several calls at the same time: their order, the first error, and Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest

from algorun_client.common import at_once

HANGING = """
import os
import threading
from algorun_client.common import at_once

def call(number):
    if number == 7:
        os.write(1, b"all wait.")  # `print` may still hold its lock when the interpreter ends
    threading.Event().wait(20)

try:
    at_once.each(call, range(100))
except KeyboardInterrupt:
    raise SystemExit(130)
"""


def test_results_come_in_the_order_of_the_items():
    assert at_once.each(lambda number: time.sleep(0.02 if number < 2 else 0) or number, range(20)) == list(range(20))
    assert at_once.each(str, []) == []


def test_the_error_of_the_first_item_that_has_one_is_raised_and_no_further_call_begins():
    begun, may_end = [], threading.Event()

    def call(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise ValueError(number)
        may_end.wait(5)

    with pytest.raises(ValueError, match="0"):
        at_once.each(call, range(100))
    may_end.set()
    time.sleep(0.05)
    assert len(begun) <= at_once.CALLS + 1


def test_ctrl_c_does_not_wait_for_answers():
    """A command that has said its last word ends, although eight calls wait for a service that does not answer."""
    with subprocess.Popen([sys.executable, "-c", HANGING], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.read(9)
            process.send_signal(signal.SIGINT)
            assert process.wait(5) == 130
        finally:
            process.kill()


def test_results_of_one_pool_come_in_the_order_of_the_items():
    calls = at_once.ParallelCalls(4)
    assert calls.each(lambda n: time.sleep((4 - n) / 100) or n * n, range(4)) == [0, 1, 4, 9]
    assert calls.each(str, []) == []
    calls.close()


def test_after_an_error_of_a_pool_no_further_call_begins():
    calls, begun = at_once.ParallelCalls(2), []

    def call(n: int) -> None:
        begun.append(n)
        time.sleep(0.05)
        if n == 1:
            raise ValueError("the second")

    with pytest.raises(ValueError, match="the second"):
        calls.each(call, range(100))
    calls.close()
    assert len(begun) < 10
    assert calls.end_within(0)


def test_a_call_that_hangs_is_waited_for_as_long_as_asked():
    calls, end = at_once.ParallelCalls(1), threading.Event()
    waiting = threading.Thread(target=calls.each, args=(lambda _: end.wait(10), [0]))
    waiting.start()
    while calls.end_within(0):
        time.sleep(0.01)
    calls.cancel()
    assert not calls.end_within(0.05)
    end.set()
    assert calls.end_within(5)
    waiting.join(5)
