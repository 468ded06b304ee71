"""Calls that wait for answers, several at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

LOOK_S = 0.2

Item = TypeVar("Item")
Result = TypeVar("Result")


class ParallelCalls:
    """A pool of threads. After the first error of a call no further one begins."""

    def __init__(self, at_once: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix=name)
        self._lock = threading.Condition()
        self._active = self._ended = 0
        self._error: BaseException | None = None  # the first one

    def each(self, call: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The results in the order of the items. Raises the first error, of an earlier `each` too."""
        with self._lock:
            end = self._ended + len(items)
        futures = [self._pool.submit(self._counted, call, each) for each in items]
        try:
            with self._lock:
                # Not for ever: if another thread gets the signal of Ctrl-C, this one sees it when it runs again.
                while self._ended < end and self._error is None:
                    self._lock.wait(LOOK_S)
                if self._error is not None:
                    raise self._error
            return [each.result() for each in futures]
        finally:
            for each in futures:
                each.cancel()

    def cancel(self) -> None:
        """No further call begins. Does not wait for those under way."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Waits for the calls under way; no further one begins."""
        self._pool.shutdown(cancel_futures=True)

    def end_within(self, wait_s: float) -> bool:
        """False if a call is still under way after `wait_s`."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._active, wait_s)

    def _counted(self, call: Callable[[Item], Result], item: Item) -> Result:
        with self._lock:
            self._active += 1
        try:
            return call(item)
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
            raise
        finally:
            with self._lock:
                self._active, self._ended = self._active - 1, self._ended + 1
                self._lock.notify_all()
