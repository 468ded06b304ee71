"""A small event loop: file descriptors, deadlines, signals and blocking calls, in one thread with one clock.

Not asyncio: its import costs 16 ms at every start, and it keeps only weak references to tasks, so that a supervisor
under load has lost one.
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
from typing import Protocol, TypeVar

T = TypeVar("T")

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
STOP_SIGNALS = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "SIGINT", signal.SIGHUP: "SIGHUP"}


def hold_signals() -> set[signal.Signals]:
    """Blocks the signals that ask for a stop, until an event loop handles them. Returns those blocked before."""
    return {signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)}


class HasFileno(Protocol):
    """A socket or a file."""

    def fileno(self) -> int: ...


class Timer:
    """One call at one time of the loop's clock; `cancel` drops it."""

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

    def watch(self, fd: int | HasFileno, events: int, callback: Callable[[int], None]) -> None:
        """Calls `callback(events)` whenever `fd` is ready for `events`; a second call replaces both."""
        try:
            self._selector.modify(fd, events, callback)
        except KeyError:
            self._selector.register(fd, events, callback)

    def forget(self, fd: int | HasFileno) -> None:
        """Stops watching `fd`, if it is watched."""
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
        """Calls `callback` in the loop's thread, soon. May be called from any thread."""
        self._posted.append(callback)
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake.send(b"\0")

    def in_thread(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """Runs a blocking call (a name look-up) in a thread of its own. The loop then calls `done` with its result, or
        with the exception that it raised. Where no further thread can start, the loop waits for the call: a host that can tell
        the others nothing would be worse."""

        def body() -> None:
            result: T | Exception
            try:
                result = work()
            except Exception as error:
                result = error
            self.post(lambda: done(result))

        try:
            threading.Thread(target=body, daemon=True).start()
        except RuntimeError:
            body()

    @contextlib.contextmanager
    def signals(self, handlers: dict[int, Callable[[], None]]) -> Iterator[None]:
        """Within a `with` block: the loop calls `handlers[number]` for each signal, also for those that were blocked."""
        self._on_signal = handlers
        # The Python handler records the signal. The byte on the socket only wakes the loop, so a full socket loses none.
        before = {number: signal.signal(number, lambda n, _: self._signalled.append(n)) for number in handlers}
        wakeup = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        held = signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                # Held signals stay without effect. To block them here is not enough: a thread that has started meanwhile takes
                # them, and the default action would end the process between a job's verdict and its exit code.
                signal.signal(number, signal.SIG_IGN if number in held else handler)

    @property
    def has_stop(self) -> bool:
        """True if a signal that asks for a stop has come, and no handler was called for it."""
        return any(number in STOP_SIGNALS for number in self._signalled)

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        """Runs until `stop` is called."""
        self._running = True
        while self._running:
            for ready, events in self._selector.select(self._timeout()):
                # An earlier callback of this round may have forgotten it, or have another callback for it.
                key = self._selector.get_map().get(ready.fd)
                if key is not None and key.fileobj is ready.fileobj and events & key.events:
                    key.data(events & key.events)
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
