"""Tells the hub when the kernel has killed processes of this host for memory. Nobody waits for Ray's workers here."""

from __future__ import annotations

from collections.abc import Callable

from algorun.common.event_loop import Loop, Timer
from algorun.control.wire.messages import MemoryKill
from algorun.machine import failure_snapshot
from algorun.machine.failure_snapshot import Snapshot
from algorun.outcome import hints

LOOK_S = 0.5  # less than the time in which the hub waits for older failures (ALGORUN_BLAME_S)


class MemoryWatch:
    """Looks every LOOK_S seconds, and sends the hub what has been killed since `before`. `root` as in probe."""

    def __init__(
        self, loop: Loop, before: Snapshot, attempt: int, send: Callable[[MemoryKill], None], root: str = ""
    ) -> None:
        self._loop, self._before, self._attempt, self._send, self._root = loop, before, attempt, send, root
        self._known = before.oom_kills
        self._timer: Timer | None = None
        self._wait()

    def look(self) -> None:
        """Looks now."""
        now = failure_snapshot.snapshot(self._root)
        if now.of_machine == self._before.of_machine and now.oom_kills > self._known:
            self._known = now.oom_kills
            found = failure_snapshot.look(self._before, root=self._root)
            self._send(MemoryKill(self._attempt, hints.kernel_killed(found)))

    def close(self) -> None:
        """Looks no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        self._timer = self._loop.after(LOOK_S, self._again)

    def _again(self) -> None:
        self.look()
        self._wait()
