"""Decides after how much silence a host is lost (`HostLoss`, on the leader), or the hub (`HubLoss`, on every host). Pure.

A host is lost when
- the hub has received nothing from it for `silence_s`: 12.25 s with the default timeout of 10 s (decided here), or
- its connection was reset, and it has not connected anew within `reset_s`: 2 s by default (decided here), or
- its connection has been closed, or it has said goodbye before the end of the job (both go straight to `Hub.lost`).

`Hub.lost` marks the host as lost in all four cases. A lost host opens the time to report failures (root_cause.py): a
failure that was there before the loss is the root cause. The hub is lost for a host when the same is true of the hub.

A reset says little: the kernel of a process that was killed with unread bytes sends one, and so does anything between two
hosts that has forgotten the connection, or means harm.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from algorun.control.failures.failure import listed
from algorun.job.limits import Limits

PATIENCE_BEATS = 2  # after a pause of this process, until the silence of others counts again
# From the end of a gap in the network until two hosts hear each other again: the kernel may ask for the other's hardware
# address only once a second, and a connection is tried every half second (network/spare_search.py).
RECONNECT_S = 1.25
RESET_S = 2.0  # from the reset of a connection until both hosts are connected anew, or one of them is lost
UNHEARD_BEATS = 2  # of a host's silence, until the hub tells it: it may hear the hub all the time
REPORTED_BEATS = 3  # of silence that are worth a line once it is over
REPORT_AGAIN_S = 60.0  # between two such lines, where the network comes and goes


class OwnHeartbeats:
    """This process's own heartbeats: when the next one is due, every `every_s` seconds."""

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


def silence_s(limits: Limits) -> float:
    """Seconds of silence after which a host is lost.

    A gap that is just shorter than the timeout may begin a whole beat after the last heartbeat, and hosts need a moment
    to hear each other again.
    """
    return limits.heartbeat_timeout_s + limits.heartbeat_s + RECONNECT_S


def reset_s(limits: Limits) -> float:
    """Seconds that the hub waits for a host whose connection was reset. The host may notice it only at its next heartbeat."""
    return max(RESET_S, limits.heartbeat_s + RECONNECT_S / 2)


class HostLoss:
    """Which hosts are lost or have left. `departed` holds both; `_own` are the hub's own heartbeats."""

    def __init__(self, now: float, limits: Limits) -> None:
        self.departed: set[str] = set()
        self._own = OwnHeartbeats(now, limits.heartbeat_s)
        self._beat_s, self._silence_s, self._reset_s = limits.heartbeat_s, silence_s(limits), reset_s(limits)
        self._resets: dict[str, tuple[float, str]] = {}  # hosts that have to connect anew: until when, and why
        self._heard_at: dict[str, float] = {}
        self._silences: dict[str, float] = {}  # seconds of silences that are over, and not reported yet
        self._report_at = now
        self._silent_at = math.inf  # when the next host could count as lost

    @property
    def deadline(self) -> float:
        """When `tick` is due: at every beat, and when a silence or the wait for a host ends."""
        return min(self._own.next_at, self._silent_at, *(at for at, _ in self._resets.values()))

    @property
    def awaits(self) -> bool:
        """True while a host whose connection was reset may come back: whether it is lost is not known yet."""
        return bool(self._resets)

    def reset(self, now: float, host: str, why: str) -> None:
        """The connection of this host was reset."""
        self._resets[host] = now + self._reset_s, why

    def heard(self, now: float, host: str) -> None:
        """Something has come from this host."""
        silent_s = now - self._heard_at.get(host, now)
        if silent_s > REPORTED_BEATS * self._beat_s and not self._own.held_up(now):
            self._silences[host] = silent_s
        self._heard_at[host] = now

    def is_back(self, now: float, host: str) -> bool:
        """This host has connected anew; True where it had counted as lost."""
        self.heard(now, host)
        self._resets.pop(host, None)
        was_lost = host in self.departed
        self.departed.discard(host)
        return was_lost

    def unheard(self, now: float, host: str) -> bool:
        """True where this host's heartbeats do not arrive. Another leader, which waits for a verdict, sends none."""
        return now - self._heard_at.get(host, now) > UNHEARD_BEATS * self._beat_s and not self._own.held_up(now)

    def beat_due(self, now: float) -> bool:
        """True once for every beat of the hub."""
        return self._own.due(now)

    def not_back(self, now: float) -> dict[str, tuple[str, float]]:
        """The hosts that have not connected anew in time, with the reason, and the seconds since their reset: on a busy machine
        more than the limit."""
        late = {host: (why, now - at + self._reset_s) for host, (at, why) in self._resets.items() if at <= now}
        for host in late:
            del self._resets[host]
        return {
            host: (f"host lost: {why}, and no other connection within {self._reset_s:g} s", age_s)
            for host, (why, age_s) in late.items()
        }

    def silent(self, now: float, hosts: Collection[str]) -> dict[str, str]:
        """Those of these hosts that are lost by their silence, with the reason. Asked at every `deadline`."""
        ends = {host: at + self._silence_s for host, at in self._heard_at.items() if host in hosts}
        silent = [host for host, end in ends.items() if max(end, self._own.patient_until) <= now]
        next_at = min((end for host, end in ends.items() if host not in silent), default=math.inf)
        self._silent_at = max(next_at, self._own.patient_until)
        return dict.fromkeys(silent, f"host lost: no sign of life for {self._silence_s:g} s")

    def news(self, now: float) -> str:
        """One line about hosts that are back after a silence, "" without news."""
        if not self._silences or now < self._report_at:
            return ""
        self._report_at = now + REPORT_AGAIN_S
        hosts, seconds = list(self._silences), max(self._silences.values())
        self._silences.clear()
        return f"no sign of life from {listed(hosts)} for {seconds:.1f} s; {'they are' if hosts[1:] else 'it is'} back"


class HubLoss:
    """What one host knows of the hub on `leader`: whether it was reached, and whether it is silent for too long."""

    def __init__(self, now: float, leader: str, limits: Limits) -> None:
        self._leader, self._silence_s = leader, silence_s(limits)
        self._own = OwnHeartbeats(now, limits.heartbeat_s)
        self._heard_at: float | None = None

    @property
    def reached(self) -> bool:
        return self._heard_at is not None

    @property
    def next_beat_at(self) -> float:
        return self._own.next_at

    @property
    def silent_at(self) -> float:
        """When the hub counts as lost, unless something comes until then."""
        if self._heard_at is None:
            return math.inf
        return max(self._heard_at + self._silence_s, self._own.patient_until)

    def heard(self, now: float) -> None:
        """Something has come from the hub, or the connection to it is made."""
        self._heard_at = now

    def beat_due(self, now: float) -> bool:
        """True once for every heartbeat that this host owes the hub."""
        return self._own.due(now) and self.reached

    def silence(self, now: float) -> str:
        """Why the hub is lost, "" while it is not."""
        if now < self.silent_at:
            return ""
        return f"hub lost: no sign of life from {self._leader} for {self._silence_s:g} s"
