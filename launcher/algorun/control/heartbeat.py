"""This process's own heartbeats: when the next one is due. Pure."""

from __future__ import annotations

PATIENCE_BEATS = 2  # after a pause of this process, until the silence of others counts again


class Pulse:
    """One process's own beat, every `every_s` seconds."""

    def __init__(self, now: float, every_s: float) -> None:
        self._every_s = every_s
        self.next_at = now + every_s
        self.patient_until = now  # where this process has not run, the heartbeats of others wait unread

    def held_up(self, now: float) -> bool:
        """True where silence may be this process's own: it has not run, or has only just begun to run again."""
        return now < self.patient_until or now - self.next_at > self._every_s

    def due(self, now: float) -> bool:
        """True once for every beat."""
        if now < self.next_at:
            return False
        if now - self.next_at > self._every_s:
            self.patient_until = now + PATIENCE_BEATS * self._every_s
        self.next_at = now + self._every_s
        return True
