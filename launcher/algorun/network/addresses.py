"""Names and addresses of the job's network."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping

from algorun.common.errors import UserError

Address = tuple[int, tuple[str | int | bytes, ...]]  # family and socket address


def look_up(host: str, port: int) -> list[Address]:
    """All stream addresses of a name. Raises OSError where it does not resolve. Blocks."""
    found = socket.getaddrinfo(host.encode("ascii"), port, type=socket.SOCK_STREAM)  # a str would load the IDNA tables
    return [(family, address) for family, _, _, _, address in found]


def own_address(host: str, addresses: Mapping[str, str], interface: str) -> str:
    """This host's address in the job: the given one, else what its name resolves to, else that of its interface.

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
