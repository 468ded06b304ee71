"""Ports that are free, for rank 0 and for the control channel of simulated hosts."""

from __future__ import annotations

from pathlib import Path


def test_ports_are_free_and_out_of_the_way_of_outgoing_connections():
    import socket

    from algorun.common import free_ports

    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for address in ("127.0.0.1", "::1"):
        ports = free_ports.free_ports(address, 3)
        assert len(set(ports)) == 3
        assert all(1024 < port < max(first, 29400) for port in ports)
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", 0))  # another address of this host: still in the way of a listener on all of them
        assert not free_ports._is_free(socket.AF_INET, taken.getsockname()[1])


def test_a_kernel_without_room_below_its_own_range_still_gives_ports(monkeypatch):
    from algorun.common import free_ports

    monkeypatch.setattr(free_ports, "_first_ephemeral_port", lambda: 1024)
    assert len(set(free_ports.free_ports("127.0.0.1", 2))) == 2
