"""What is said of peers that the hub has refused: one line in a while, and how many were left out. Pure."""

from __future__ import annotations

import math

FIRST_PAUSE_S = 5.0  # between two lines; each pause in which more came than was said doubles the next one
LONGEST_PAUSE_S = 300.0
SHOWN_BYTES = 40  # of what a peer has sent


class Refusals:
    """A flood of strangers must not flood the log: the first one is told at once, the others together."""

    def __init__(self) -> None:
        self._quiet_until = -math.inf
        self._pause_s = FIRST_PAUSE_S
        self._left_out = 0
        self._last = ""

    @property
    def due(self) -> float | None:
        """When `rest` has something to say."""
        return self._quiet_until if self._left_out else None

    def refused(self, now: float, peer: str, why: str) -> str:
        """The line for this one, "" where it has to wait."""
        what = f"{peer or 'a peer'}: {why}"
        if self._left_out or now < self._quiet_until:
            self._left_out += 1
            self._last = what
            return ""
        if now >= self._quiet_until + self._pause_s:
            self._pause_s = FIRST_PAUSE_S
        self._quiet_until = now + self._pause_s
        return f"refused a connection from {what}"

    def rest(self, now: float, *, last: bool = False) -> str:
        """The line for those left out, once it is `due`; with `last` at once. "" where there is none."""
        if not self._left_out or (now < self._quiet_until and not last):
            return ""
        more = f"{self._left_out} more connections, the last" if self._left_out > 1 else "one more connection,"
        self._left_out = 0
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._quiet_until = now + self._pause_s
        return f"refused {more} from {self._last}"


def shown(sent: bytes) -> str:
    """What a peer has sent, for people: escaped and cut."""
    return repr(sent[:SHOWN_BYTES])[1:] + (".." if len(sent) > SHOWN_BYTES else "")
