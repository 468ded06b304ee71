"""The way to the hub, and the search for another connection when the hub has fallen silent over the first one."""

from __future__ import annotations

import socket
from collections.abc import Callable

from algorun.common.event_loop import Loop, Timer

from .addresses import Address, look_up
from .connection import Connection

# How often another connection is tried. The kernel doubles its own pauses: it would notice the end of a gap of 8 s up
# to 7 s late.
SPARE_EVERY_S = 0.5
SPARE_ANSWER_S = 3.0  # for the hub's first line over it: the kernel of a hub that stands still connects all the same


class Route:
    """The way to the hub on `leader`: a name or an address, and a port. `source` is this host's address, "" for any."""

    def __init__(self, leader: str, where: tuple[str, int], source: str = "") -> None:
        self.leader, self.where, self._source = leader, where, source
        self._reached: list[Address] = []

    def look_up_and_connect(self, timeout_s: float) -> socket.socket:
        """Connects to the first address that answers. Raises OSError. Blocks, as the look-up does."""
        return self._connect(look_up(*self.where), timeout_s)

    def connect_again(self, timeout_s: float) -> socket.socket:
        """Connects to where the hub was reached. Raises OSError. Blocks."""
        return self._connect(self._reached, timeout_s)

    def _connect(self, addresses: list[Address], timeout_s: float) -> socket.socket:
        error: OSError = OSError("no address")
        for family, address in addresses:
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.settimeout(timeout_s)
                if self._source:
                    sock.bind((self._source, 0))
                sock.connect(address)
            except OSError as failed:
                sock.close()
                error = failed
            else:
                self._reached = [(family, address)]
                return sock
        raise error


class SpareSearch:
    """Tries spare connections from `seek` to `stop`. `listen(socket)` makes a connection of what was reached.

    `spare` is the connection that is being tried, None while there is none.
    """

    def __init__(self, loop: Loop, route: Route, listen: Callable[[socket.socket], Connection]) -> None:
        self._loop, self._route, self._listen = loop, route, listen
        self.spare: Connection | None = None
        self._seeking = False
        self._closed = False
        self._timer: Timer | None = None

    def seek(self) -> None:
        """Tries until the hub speaks."""
        if not self._seeking and not self._closed:
            self._seeking = True
            self._seek_once()

    def seek_later(self) -> None:
        """Tries again after a pause: what was reached is not the hub, or not the hub any more."""
        if not self._seeking and not self._closed:
            self._seeking = True
            self._timer = self._loop.after(SPARE_EVERY_S, self._seek_once)

    def stop(self) -> None:
        """The hub has spoken: what is under way is given up."""
        self._seeking = False
        if self._timer is not None:
            self._timer.cancel()
        if self.spare is not None:
            self.spare.abandon()
            self.spare = None

    def take(self) -> Connection:
        """Hands the spare connection over and ends the search. There is one: the hub has greeted over it."""
        taken, self.spare = self.spare, None
        assert taken is not None
        self.stop()
        return taken

    def drop(self) -> None:
        """The spare connection has ended, or is no hub's. The timer brings the next."""
        self.spare = None

    def close(self) -> None:
        """Nothing is tried any more."""
        self._closed = True
        self.stop()

    def _seek_once(self) -> None:
        next_at = self._loop.now() + SPARE_EVERY_S
        self._loop.in_thread(
            lambda: self._route.connect_again(SPARE_EVERY_S), lambda result: self._found(next_at, result)
        )

    def _found(self, next_at: float, result: socket.socket | Exception) -> None:
        wanted = self._seeking and self.spare is None
        if isinstance(result, Exception):
            if wanted:
                self._timer = self._loop.at(next_at, self._seek_once)
        elif wanted:
            self.spare = self._listen(result)
            self._timer = self._loop.after(SPARE_ANSWER_S, self._seek_another)
        else:
            result.close()

    def _seek_another(self) -> None:
        self.stop()
        self.seek()
