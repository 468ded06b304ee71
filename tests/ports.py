"""Ports for the supervisors and ranks that a test starts by itself."""

from __future__ import annotations

import socket

from algorun.common.free_ports import hold

_held: list[socket.socket] = []


def own_port() -> int:
    """A port that no other job of this machine gets while this process lives, though nobody may listen on it for seconds."""
    _held.append(hold("127.0.0.1"))
    return int(_held[-1].getsockname()[1])
