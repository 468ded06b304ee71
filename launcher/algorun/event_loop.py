"""A small event loop: file descriptors, deadlines, signals and blocking calls, in one thread with one clock.

asyncio would cost 16 ms of every start, and it holds its tasks weakly: a supervisor under load has lost one.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


STOP_SIGNALS = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "SIGINT", signal.SIGHUP: "SIGHUP"}


def hold_signals() -> set[signal.Signals]:
    """Signals to stop wait from now on, until a loop listens to them. Returns what was held before."""
    return {signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)}


class Timer:
    """One call at one moment of the loop's clock; `cancel` forgets it."""

    __slots__ = ("callback", "deadline")

    def __init__(self, deadline: float, callback: Callable[[], None]) -> None:
        self.deadline = deadline
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """Runs callbacks until `stop`. All callbacks run in the thread that called `run`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._posted: deque[Callable[[], None]] = deque()
        self._signalled: deque[int] = deque()
        self._on_signal: dict[int, Callable[[], None]] = {}
        self._running = False
        self._awake, self._wake = socket.socketpair()
        for end in (self._awake, self._wake):
            end.setblocking(False)
        self._selector.register(self._awake, READ, self._wakened)

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def watch(self, fd: Any, events: int, callback: Callable[[int], None]) -> None:
        """Calls `callback(events)` while `fd` is ready; a second call changes what is watched."""
        try:
            self._selector.modify(fd, events, callback)
        except KeyError:
            self._selector.register(fd, events, callback)

    def forget(self, fd: Any) -> None:
        """Stops watching `fd`; nothing happens if it was not watched."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(fd)

    def at(self, deadline: float, callback: Callable[[], None]) -> Timer:
        """Calls `callback` once `now()` has reached `deadline`."""
        timer = Timer(deadline, callback)
        heapq.heappush(self._timers, (deadline, next(self._order), timer))
        return timer

    def after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Calls `callback` after `delay_s` seconds."""
        return self.at(self.now() + delay_s, callback)

    def post(self, callback: Callable[[], None]) -> None:
        """Calls `callback` soon; from any thread."""
        self._posted.append(callback)
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake.send(b"\0")

    def in_thread(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Runs a blocking call (a name look-up) in a thread of its own; `done` gets its result or its exception."""

        def body() -> None:
            try:
                result = work()
            except Exception as error:  # handed over whole
                result = error
            self.post(lambda: done(result))

        threading.Thread(target=body, daemon=True).start()

    @contextlib.contextmanager
    def signals(self, handlers: dict[int, Callable[[], None]]) -> Iterator[None]:
        """Turns signals into calls of the loop for the length of a `with` block, those that wait included."""
        self._on_signal = handlers
        # The handlers note the signal, the bytes only wake the loop: some get lost when the socket is full.
        before = {number: signal.signal(number, lambda n, _: self._signalled.append(n)) for number in handlers}
        wakeup = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        held = signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        """Runs until `stop` is called."""
        self._running = True
        while self._running:
            for key, events in self._selector.select(self._timeout()):
                key.data(events)
            while self._signalled:
                number = self._signalled.popleft()
                if number in self._on_signal:
                    self._on_signal[number]()
            while self._posted:
                self._posted.popleft()()
            self._fire()

    def close(self) -> None:
        self._selector.close()
        self._awake.close()
        self._wake.close()

    def _timeout(self) -> float | None:
        if self._posted or self._signalled:
            return 0
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - self.now()) if self._timers else None

    def _fire(self) -> None:
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.callback is not None:
                callback, timer.callback = timer.callback, None
                callback()

    def _wakened(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._awake.fileno(), 65536)
