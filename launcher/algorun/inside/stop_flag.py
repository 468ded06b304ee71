"""A flag that SIGTERM sets. Import it before torch, so that a SIGTERM during torch's import is not lost."""

from __future__ import annotations

import os
import signal
from types import FrameType


class StopFlag:
    """`wanted` is True once SIGTERM has come. The handler does nothing else, so the rank finishes its step."""

    def __init__(self) -> None:
        self.wanted = False
        self.installed = False
        self._before: object = signal.SIG_DFL
        self._blocked = self._registered = False

    def install(self) -> None:
        """Installs the handler; it also calls the handler set before. Raises ValueError outside the main thread.

        A forked child gets the former handler back, because multiprocessing ends its processes with SIGTERM. A child
        that is a rank itself calls `install` again.
        """
        self._before = signal.signal(signal.SIGTERM, self._set)
        if not self._registered:
            self._registered = True
            os.register_at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._leave)
        self.installed = True

    def _set(self, signum: int, frame: FrameType | None) -> None:
        self.wanted = True
        if callable(self._before):
            self._before(signum, frame)

    def _hold(self) -> None:
        """Blocks SIGTERM during a fork. A child that still has this handler would lose it: Python clears pending signals
        after a fork."""
        self._blocked = signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def _release(self) -> None:
        if not self._blocked:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    def _leave(self) -> None:
        if self.installed and signal.getsignal(signal.SIGTERM) == self._set:
            signal.signal(signal.SIGTERM, self._before)  # type: ignore[arg-type]
        self.installed = self.wanted = False
        self._release()
