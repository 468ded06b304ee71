"""The warnings about peers that the hub has refused: a line now and then, with the number left out. Pure."""

from __future__ import annotations

import math

PAUSE_S = 60.0  # between two lines
SHOWN_BYTES = 40  # of what a peer has sent


class Refusals:
    """A flood of strangers must not flood the log: the first gets a line at once, the others share one."""

    def __init__(self) -> None:
        self._quiet_until = -math.inf
        self._left_out = 0
        self._last = ""

    @property
    def due(self) -> float | None:
        """When `rest` has something to say."""
        return self._quiet_until if self._left_out else None

    def refused(self, now: float, peer: str, why: str) -> str:
        """The line about this peer, "" where it has to wait."""
        what = f"{peer or 'a peer'}: {why}"
        if self._left_out or now < self._quiet_until:
            self._left_out += 1
            self._last = what
            return ""
        self._quiet_until = now + PAUSE_S
        return f"refused a connection from {what}"

    def rest(self, now: float, *, last: bool = False) -> str:
        """The line about the peers left out, once it is `due`, or at once with `last`; "" where there is none."""
        if not self._left_out or (now < self._quiet_until and not last):
            return ""
        more = f"{self._left_out} more connections, the last" if self._left_out > 1 else "one more connection,"
        self._left_out = 0
        self._quiet_until = now + PAUSE_S
        return f"refused {more} from {self._last}"


def shown(sent: bytes) -> str:
    """What a peer has sent, escaped and cut for people to read."""
    return repr(sent[:SHOWN_BYTES])[1:] + (".." if len(sent) > SHOWN_BYTES else "")
