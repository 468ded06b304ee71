"""Whose a busy port is, by the kernel's tables."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from algorun.common.free_ports import free_ports
from algorun.machine.port_owner import inodes, owner

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
REST = "00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0 100 0 0 10 0\n"


def table(*rows: tuple[str, str, int]) -> str:
    return HEAD + "".join(f"   0: {where} " + REST.format(state=state, inode=inode) for where, state, inode in rows)


@pytest.mark.skipif(sys.byteorder != "little", reason="the rows were written down on a little-endian machine")
def test_the_listener_on_the_address_or_on_all_of_them_is_found():
    rows = table(
        ("0100007F:73A0", "0A", 11),  # 127.0.0.1:29600
        ("0200007F:73A0", "0A", 12),  # another address
        ("0100007F:73A1", "0A", 13),  # another port
        ("0100007F:73A0", "01", 14),  # a connection, no listener
        ("00000000:73A0", "0A", 15),
    )
    assert list(inodes(rows, "127.0.0.1", 29600)) == ["11", "15"]
    six = table(
        ("00000000000000000000000000000000:73A0", "0A", 21),
        ("0000000000000000FFFF00000100007F:73A0", "0A", 22),  # ::ffff:127.0.0.1
        ("00000000000000000000000001000000:73A0", "0A", 23),  # ::1
    )
    assert list(inodes(six, "127.0.0.1", 29600)) == ["21", "22"]
    assert list(inodes(six, "::1", 29600)) == ["21", "23"]
    assert not list(inodes("", "127.0.0.1", 29600))


def has_ipv6() -> bool:
    """Docker's own network, say, has none."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback address")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.3", pytest.param("::1", marks=needs_ipv6)])
def test_a_real_listener_is_named_without_its_arguments(address):
    (port,) = free_ports(address, 1)
    code = (
        "import socket, sys; s = socket.create_server((sys.argv[1], int(sys.argv[2])), "
        "family=socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET); print('up', flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", code, address, str(port), "--password", "hunter2"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "up\n"
            found = owner(address, port)
        finally:
            child.stdin.close()
            child.wait(20)
    assert found == f"{os.path.basename(sys.executable)[:15]} (pid {child.pid})"
    assert owner(address, port) == ""


def test_a_listener_elsewhere_is_nobodys():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert owner("127.0.0.2", server.getsockname()[1]) == ""
