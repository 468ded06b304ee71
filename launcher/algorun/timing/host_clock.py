"""How far the clock of this host is from the leader's, from round trips through the control channel. Pure.

A question that leaves at t0 and whose answer arrives at t1 was answered between the two. The leader's time in the answer
belongs to their middle, up to half of the round trip (as NTP reckons, RFC 5905, section 8).
"""

from __future__ import annotations

from collections import deque

from algorun.common.fast_dataclasses import dataclass

DRIFT = 15e-6  # seconds a second between two clocks, as RFC 5905 assumes (PHI)
MOST = 64  # round trips that are kept


@dataclass(frozen=True, slots=True)
class Offset:
    """The leader's monotonic clock shows `seconds` more than this host's. Wrong by `within_s` at most."""

    seconds: float
    within_s: float


class HostClock:
    """The round trips of one host. The leader's own clock needs none."""

    def __init__(self, *, leads: bool) -> None:
        self.leads = leads
        self._found: deque[tuple[float, Offset]] = deque(maxlen=MOST)  # each with its moment on this host's clock

    def answered(self, sent_at: float, leader_at: float, now: float) -> None:
        """A question sent at `sent_at` came back at `now`; in between the leader's clock showed `leader_at`."""
        if now >= sent_at:
            middle = (sent_at + now) / 2
            self._found.append((middle, Offset(leader_at - middle, (now - sent_at) / 2)))

    def offset(self, begin: float, end: float) -> Offset | None:
        """The best that is known for all moments from `begin` to `end` of this host's clock; None without an answer."""
        if self.leads:
            return Offset(0.0, 0.0)
        known = [
            Offset(each.seconds, each.within_s + DRIFT * max(abs(at - begin), abs(at - end)))
            for at, each in self._found
        ]
        return min(known, key=lambda each: each.within_s, default=None)
