"""Calls that wait for answers, several at the same time.

Not by a pool of concurrent.futures: Python waits at its end for the threads of pools, so for calls that nobody answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

CALLS = 8
LOOK_S = 0.2

Item = TypeVar("Item")
Result = TypeVar("Result")


def each(call: Callable[[Item], Result], items: Iterable[Item], calls: int = CALLS) -> list[Result]:
    """`call` of each item, in their order, at most `calls` at the same time.

    Raises the error of the first item that has one. After an error, or Ctrl-C, no further call begins, and none is waited for.
    """
    parallel = ParallelCalls(calls)
    try:
        return [future.result() for future in parallel.begin(call, items)]
    finally:
        parallel.cancel()


class ParallelCalls:
    """At most `calls` calls at the same time. After the first error of a call no further one begins."""

    def __init__(self, calls: int) -> None:
        self._calls, self._changed = calls, threading.Condition()
        self._active = self._ended = 0
        self._is_over = False
        self._error: BaseException | None = None  # the first one

    def begin(self, call: Callable[[Item], Result], items: Iterable[Item]) -> list[Future[Result]]:
        """Begins the calls. The results in the order of the items; after an error or `cancel` some never come."""
        waiting: SimpleQueue[tuple[Future[Result], Item]] = SimpleQueue()
        futures: list[Future[Result]] = []
        for item in items:
            futures.append(Future())
            waiting.put((futures[-1], item))

        def work() -> None:
            while True:
                with self._changed:
                    try:
                        if self._is_over:
                            return
                        future, item = waiting.get_nowait()
                    except Empty:
                        return
                    self._active += 1
                self._carry_out(future, call, item)

        for _ in range(min(self._calls, len(futures))):
            threading.Thread(target=work, daemon=True).start()
        return futures

    def each(self, call: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """The results in the order of the items. Raises the first error in time, of an earlier `each` too."""
        with self._changed:
            before = self._ended
        futures = self.begin(call, items)
        try:
            with self._changed:
                # Not for ever: if another thread gets the signal of Ctrl-C, this one sees it when it runs again.
                while self._error is None and self._ended < before + len(futures):
                    self._changed.wait(LOOK_S)
                if self._error is not None:
                    raise self._error
        except BaseException:
            self.cancel()
            raise
        return [future.result() for future in futures]

    def cancel(self) -> None:
        """No further call begins. Does not wait for those under way."""
        with self._changed:
            self._is_over = True

    def close(self) -> None:
        """Waits for the calls under way; no further one begins."""
        self.cancel()
        with self._changed:
            while self._active:
                self._changed.wait(LOOK_S)

    def end_within(self, wait_s: float) -> bool:
        """False if a call is still under way after `wait_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._active, wait_s)

    def _carry_out(self, future: Future[Result], call: Callable[[Item], Result], item: Item) -> None:
        error: BaseException | None = None
        try:
            future.set_result(call(item))
        except BaseException as raised:  # of the caller, who waits for it
            error = raised
            future.set_exception(raised)
        with self._changed:
            if error is not None:
                self._error, self._is_over = self._error or error, True
            self._active, self._ended = self._active - 1, self._ended + 1
            self._changed.notify_all()
