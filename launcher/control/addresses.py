"""Names, addresses and ports of the job's network."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from typing import Any

from ..errors import UserError

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
    """Different ports that are free on this address now."""
    (family, where), *_ = look_up(address, 0)
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.socket(family, socket.SOCK_STREAM)) for _ in range(count)]
        for sock in socks:
            sock.bind(where)
        return [int(sock.getsockname()[1]) for sock in socks]
