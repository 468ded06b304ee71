"""The wish to stop: SIGTERM sets a flag. Imported before torch where a stop that arrives meanwhile must not be lost."""

from __future__ import annotations

import os
import signal
from types import FrameType


class StopFlag:
    """Set by SIGTERM. The handler only sets it: whatever the rank is doing goes on to the end of its step."""

    def __init__(self) -> None:
        self.wanted = False
        self.installed = False
        self._before: object = signal.SIG_DFL
        self._blocked = self._registered = False

    def install(self) -> None:
        """Takes SIGTERM over; a handler that is there already is called too. Raises ValueError outside the main thread.

        A forked child gets the former handler back: multiprocessing ends its processes with SIGTERM, and they are to
        end. One that is a rank itself installs its own.
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
        """A signal that a child gets while it still has this handler would be lost: Python forgets it at the fork."""
        self._blocked = signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def _release(self) -> None:
        if not self._blocked:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    def _leave(self) -> None:
        if self.installed and signal.getsignal(signal.SIGTERM) == self._set:
            signal.signal(signal.SIGTERM, self._before)  # type: ignore[arg-type]
        self.installed = self.wanted = False
        self._release()
