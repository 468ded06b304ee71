"""A stop on one host: ranks are told once, have their time to save, and are killed after that. Pure."""

from __future__ import annotations

import math


class Grace:
    """`stopping` is true from the stop on. `kill_at` is when ranks that are left are killed, for whatever reason."""

    def __init__(self) -> None:
        self.stopping = False
        self.kill_at = math.inf
        self._interrupts = 0

    def interrupted(self) -> bool:
        """Ctrl-C at a terminal; True from the second one on, which takes the grace away."""
        self._interrupts += 1
        return self._interrupts > 1

    def kill_now(self) -> bool:
        """Ends the time that is left. False where none was."""
        left, self.kill_at = self.kill_at < math.inf, math.inf
        return left
