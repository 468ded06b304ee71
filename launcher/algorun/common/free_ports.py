"""Ports of this host that nobody uses."""

from __future__ import annotations

import contextlib
import os
import socket

LOWEST_PORT, HIGHEST_PORT = 12000, 29400  # above well-known services, below torchrun's defaults and our own
PORT_TRIES = 200


def free_ports(address: str, count: int) -> list[int]:
    """Different ports that are free now, on this address and on all others of this host.

    They lie below the range that the kernel uses for outgoing connections. Such a connection could take the port before
    its listener is there: even a client that retries, which would then be connected to itself.
    """
    addresses = socket.getaddrinfo(address.encode("ascii"), 0)  # a str would load the IDNA tables
    family = addresses[0][0]
    top = min(HIGHEST_PORT, _first_ephemeral_port())
    found: list[int] = []
    for _ in range(PORT_TRIES):
        if len(found) == count or top <= LOWEST_PORT:
            break
        port = LOWEST_PORT + int.from_bytes(os.urandom(4), "big") % (top - LOWEST_PORT)
        if port not in found and _is_free(family, port):
            found.append(port)
    with contextlib.ExitStack() as stack:  # where the kernel's own range begins too low
        for _ in range(count - len(found)):
            sock = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sock.bind(("", 0))
            found.append(int(sock.getsockname()[1]))
    return found


def _first_ephemeral_port() -> int:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return HIGHEST_PORT


def _is_free(family: int, port: int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        try:
            sock.bind(("", port))
        except OSError:
            return False
        return True
