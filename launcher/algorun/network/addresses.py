"""Names, addresses and ports of the job's network."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Any

from algorun.errors import UserError

LOWEST_PORT, HIGHEST_PORT = 12000, 29400  # above well-known services, below torchrun's defaults and our own
PORT_TRIES = 200

Address = tuple[int, tuple[Any, ...]]  # family and socket address


def look_up(host: str, port: int) -> list[Address]:
    """All stream addresses of a name. Raises OSError where it does not resolve. Blocks."""
    found = socket.getaddrinfo(host.encode("ascii"), port, type=socket.SOCK_STREAM)  # text would load the IDNA tables
    return [(family, address) for family, _, _, _, address in found]


def own_address(host: str, addresses: Mapping[str, str], interface: str) -> str:
    """The address of this host that the job uses: given, else what its name resolves to, else its interface's.

    A name that resolves to loopback (some /etc/hosts files) would hide the hub from the other hosts.
    """
    if host in addresses:
        return addresses[host]
    with contextlib.suppress(OSError):
        for _, address in look_up(host, 0):
            if not str(address[0]).startswith("127.") and address[0] != "::1":
                return str(address[0])
    return interface_address(interface)


def interface_address(interface: str) -> str:
    """The IPv4 address of an interface (SIOCGIFADDR, netdevice(7))."""
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(sock.fileno(), 0x8915, request)[20:24])
        except OSError as error:
            raise UserError(
                "network_interface_name",
                f"{interface!r} has no IPv4 address: {error.strerror}",
                fix="name an interface of this host",
            ) from None


def free_ports(address: str, count: int) -> list[int]:
    """Different ports that are free now, on this address and on all others of this host.

    Below the range that the kernel gives to outgoing connections: one of those could take the port before its listener
    is there, even a client's own retry, which would then be connected to itself.
    """
    (family, _), *_ = look_up(address, 0)
    top = min(HIGHEST_PORT, _first_ephemeral_port())
    found: list[int] = []
    for _ in range(PORT_TRIES):
        if len(found) == count or top <= LOWEST_PORT:
            break
        port = LOWEST_PORT + int.from_bytes(os.urandom(4), "big") % (top - LOWEST_PORT)
        if port not in found and _is_free(family, port):
            found.append(port)
    with contextlib.ExitStack() as stack:  # a kernel whose own range begins that low
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
