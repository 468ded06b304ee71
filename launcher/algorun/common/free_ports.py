"""Ports of this host that nobody uses."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection

from .errors import UserError

LOWEST_PORT, HIGHEST_PORT = 12000, 29400  # above well-known services, below torchrun's defaults and our own
PORT_TRIES = 200
HOLD_TRIES = 4
WHOLE = (0, 1)
ROOM = 8  # a part has this many times the ports that are wanted


def free_ports(address: str, count: int, part: tuple[int, int] = WHOLE) -> list[int]:
    """Different ports that are free now, on this address and on all others of this host.

    They lie below the range that the kernel uses for outgoing connections. Such a connection could take the port before
    its listener is there: even a client that retries, which would then be connected to itself.

    `part` is (index, number) of equal parts of the range. Hosts that may be on one machine look in different ones, so that
    none takes what another has found.
    """
    family = _family(address)
    lowest, top = _range(count, part)
    found: list[int] = []
    for _ in range(PORT_TRIES):
        if len(found) == count or top <= lowest:
            break
        port = lowest + int.from_bytes(os.urandom(4), "big") % (top - lowest)
        if port not in found and is_free(family, port):
            found.append(port)
    with contextlib.ExitStack() as stack:  # where the kernel's own range begins too low
        for _ in range(count - len(found)):
            sock = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sock.bind(("", 0))
            found.append(int(sock.getsockname()[1]))
    return found


def hold(address: str) -> socket.socket:
    """A port that is free on all addresses of this host, and that nobody else finds free until the socket is closed.

    Nobody listens on it yet, so connections are refused. A hub of this host can listen on it meanwhile (SO_REUSEADDR).
    Raises OSError where a port cannot be bound.
    """
    sock = socket.socket(_family(address), socket.SOCK_STREAM)
    *others, last = free_ports(address, HOLD_TRIES)
    for port in others:
        with contextlib.suppress(OSError):  # somebody else has found the same one since
            sock.bind(("", port))
            break
    else:
        sock.bind(("", last))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after the bind, which would let in a second holder
    return sock


def free_row(address: str, count: int, taken: Collection[int] = (), part: tuple[int, int] = WHOLE) -> int:
    """The first of `count` consecutive ports that are free now, without those of `taken`; where, `free_ports` says.

    Raises UserError if there is no such row.
    """
    family = _family(address)
    lowest, top = _range(count, part)
    if top - lowest < count:  # where the kernel's own range begins too low
        lowest, top = LOWEST_PORT, HIGHEST_PORT
    for _ in range(PORT_TRIES):
        first = lowest + int.from_bytes(os.urandom(4), "big") % (top - lowest - count + 1)
        row = range(first, first + count)
        if not any(port in row for port in taken) and all(is_free(family, port) for port in row):
            return first
    raise UserError(
        "ports", f"{count} consecutive free ports were not found", allowed=f"{LOWEST_PORT} to {HIGHEST_PORT}"
    )


def _family(address: str) -> socket.AddressFamily:
    return socket.getaddrinfo(address.encode("ascii"), 0)[0][0]  # a str would load the IDNA tables


def _range(count: int, part: tuple[int, int]) -> tuple[int, int]:
    """The lowest port and the one above the highest of a part of the range; of the whole range if its parts are small."""
    top = min(HIGHEST_PORT, first_ephemeral_port())
    index, number = part
    size = (top - LOWEST_PORT) // number
    if size < ROOM * count:
        return LOWEST_PORT, top
    return LOWEST_PORT + index * size, LOWEST_PORT + (index + 1) * size


def first_ephemeral_port() -> int:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return HIGHEST_PORT


def is_free(family: int, port: int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        try:
            sock.bind(("", port))
        except OSError:
            return False
        return True
