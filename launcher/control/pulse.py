"""Signs of life: when the next one is due, and whether silence may be judged. Pure."""

from __future__ import annotations

PATIENCE_BEATS = 2  # after a pause of this process, until silence counts again


class Pulse:
    """One process's own beat, every `every_s` seconds."""

    def __init__(self, now: float, every_s: float) -> None:
        self._every_s = every_s
        self.next_at = now + every_s
        self.patient_until = now  # where this process has not run, the signs of others wait unread

    def due(self, now: float) -> bool:
        """True once for every beat."""
        if now < self.next_at:
            return False
        if now - self.next_at > self._every_s:
            self.patient_until = now + PATIENCE_BEATS * self._every_s
        self.next_at = now + self._every_s
        return True
