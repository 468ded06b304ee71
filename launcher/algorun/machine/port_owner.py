"""Which process listens on a port. /proc/net/tcp gives the inode of its socket, /proc/*/fd the process (proc(5))."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator

from .system_files import read_text

LISTENS = "0A"  # TCP_LISTEN of tcp_states.h


def owner(address: str, port: int) -> str:
    """The program that listens on this port, on `address` or on all addresses, as `python3 (pid 4711)`.

    "" if the process is not visible: it belongs to another user or container. Never shows arguments: they may hold
    secrets.
    """
    sockets = set()
    for table in ("tcp", "tcp6"):
        sockets |= set(inodes(read_text(f"/proc/net/{table}"), address, port))
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()) if sockets else ():
        if _holds(pid, sockets):
            return f"{_name(pid)} (pid {pid})"
    return ""


def inodes(table: str, address: str, port: int) -> Iterator[str]:
    """The inodes of the sockets that listen on this port. `table` is the text of /proc/net/tcp or tcp6."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != LISTENS:
            continue
        where, _, number = fields[1].partition(":")
        if int(number, 16) == port and _readable(where) in (address, "0.0.0.0", "::"):
            yield fields[9]


def _readable(raw: str) -> str:
    """An address as people write it. The table stores 32-bit words in this machine's byte order, in hexadecimal."""
    words = [int(raw[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(raw), 8)]
    packed = b"".join(words)
    if len(packed) == 16 and packed.startswith(bytes(10) + b"\xff\xff"):  # an IPv4 address as IPv6 writes it
        packed = packed[12:]
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def _holds(pid: int, sockets: set[str]) -> bool:
    wanted = {f"socket:[{inode}]" for inode in sockets}
    with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{fd}") in wanted:
                    return True
    return False


def _name(pid: int) -> str:
    """The process's name. It may have chosen any text, so an unprintable one is not shown."""
    name = read_text(f"/proc/{pid}/comm")
    return name if name.isprintable() and name.isascii() and name else "a program"
