"""Calls beside each other: their order, their first error, and their end."""

from __future__ import annotations

import threading
import time

import pytest

from algorun_client.submit.place.parallel_calls import ParallelCalls


def test_results_come_in_the_order_of_the_items():
    calls = ParallelCalls(4, "test")
    assert calls.each(lambda n: time.sleep((4 - n) / 100) or n * n, range(4)) == [0, 1, 4, 9]
    assert calls.each(str, []) == []
    calls.close()


def test_after_an_error_no_further_call_begins():
    calls, begun = ParallelCalls(2, "test"), []

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
    calls, end = ParallelCalls(1, "test"), threading.Event()
    waiting = threading.Thread(target=calls.each, args=(lambda _: end.wait(10), [0]))
    waiting.start()
    while calls.end_within(0):
        time.sleep(0.01)
    calls.cancel()
    assert not calls.end_within(0.05)
    end.set()
    assert calls.end_within(5)
    waiting.join(5)
