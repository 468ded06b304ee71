"""Signs of life: when the next one is due, and whether silence may be judged. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection

from algorun.job.settings import Limits

from .gate import listed

PATIENCE_BEATS = 2  # after a pause of this process, until silence counts again
# After a gap in the network, until two hosts hear each other again: the kernel may ask for the other's hardware address
# once a second only, a connection is tried every half second (control/link).
RECONNECT_S = 1.25
UNHEARD_BEATS = 2  # silence of a host that it is told of: it may hear the hub all the time
WORTH_BEATS = 3  # silence that is told of once it is over
TELL_AGAIN_S = 60.0  # a network that comes and goes is told of once in so long


def silence_s(limits: Limits) -> float:
    """Silence that ends a job. A gap just below the time-out may begin a beat after the last sign of life."""
    return limits.heartbeat_timeout_s + limits.heartbeat_s + RECONNECT_S


class Pulse:
    """One process's own beat, every `every_s` seconds."""

    def __init__(self, now: float, every_s: float) -> None:
        self._every_s = every_s
        self.next_at = now + every_s
        self.patient_until = now  # where this process has not run, the signs of others wait unread

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


class Hearing:
    """When each of several hosts was heard last. `pulse` is that of the process that listens."""

    def __init__(self, now: float, pulse: Pulse, limits: Limits) -> None:
        self._pulse, self._beat_s, self._limit_s = pulse, limits.heartbeat_s, silence_s(limits)
        self._at: dict[str, float] = {}
        self._over: dict[str, float] = {}  # seconds of silences that are over, and not told of
        self._tell_at = now
        self.due_at = math.inf
        """when `silent` wants to be asked"""

    def heard(self, now: float, host: str) -> None:
        """A sign of life."""
        silence_s = now - self._at.get(host, now)
        if silence_s > WORTH_BEATS * self._beat_s and not self._pulse.held_up(now):
            self._over[host] = silence_s
        self._at[host] = now

    def unheard(self, now: float, host: str) -> bool:
        """True where this host's signs of life do not arrive. Another leader, which waits for a verdict, gives none."""
        return now - self._at.get(host, now) > UNHEARD_BEATS * self._beat_s and not self._pulse.held_up(now)

    def silent(self, now: float, hosts: Collection[str]) -> list[str]:
        """Those of these hosts that have been silent for too long."""
        ends = {host: at + self._limit_s for host, at in self._at.items() if host in hosts}
        silent = [host for host, end in ends.items() if max(end, self._pulse.patient_until) <= now]
        next_at = min((end for host, end in ends.items() if host not in silent), default=math.inf)
        self.due_at = max(next_at, self._pulse.patient_until)
        return silent

    def news(self, now: float) -> str:
        """One line about hosts that are back after a silence, "" without news."""
        if not self._over or now < self._tell_at:
            return ""
        self._tell_at = now + TELL_AGAIN_S
        hosts, seconds = list(self._over), max(self._over.values())
        self._over.clear()
        return f"no sign of life from {listed(hosts)} for {seconds:.1f} s; {'they are' if hosts[1:] else 'it is'} back"
