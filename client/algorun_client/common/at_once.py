"""Several calls at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

CALLS = 8

Item = TypeVar("Item")
Result = TypeVar("Result")


def each(call: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """`call` of each item, in their order. After an error, or Ctrl-C, no further call begins, and none is waited for.

    Not by a pool: Python waits at its end for the threads of pools, so for calls that nobody answers.
    """
    waiting: SimpleQueue[tuple[Future[Result], Item]] = SimpleQueue()
    futures: list[Future[Result]] = []
    for item in items:
        futures.append(Future())
        waiting.put((futures[-1], item))
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            try:
                future, item = waiting.get_nowait()
            except Empty:
                return
            try:
                future.set_result(call(item))
            except BaseException as error:  # of the caller, who waits for it
                future.set_exception(error)

    for _ in range(min(CALLS, len(futures))):
        threading.Thread(target=work, daemon=True).start()
    try:
        return [future.result() for future in futures]
    finally:
        is_over.set()
