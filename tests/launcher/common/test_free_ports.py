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
        assert not free_ports.is_free(socket.AF_INET, taken.getsockname()[1])


def test_a_kernel_without_room_below_its_own_range_still_gives_ports(monkeypatch):
    from algorun.common import free_ports

    monkeypatch.setattr(free_ports, "first_ephemeral_port", lambda: 1024)
    assert len(set(free_ports.free_ports("127.0.0.1", 2))) == 2


def test_a_row_of_ports_is_free_from_end_to_end(monkeypatch):
    import socket

    from algorun.common import free_ports

    begin = free_ports.free_row("127.0.0.1", 12)
    monkeypatch.setattr(free_ports, "LOWEST_PORT", begin)
    monkeypatch.setattr(free_ports, "HIGHEST_PORT", begin + 12)  # only some rows of four have no port that is taken
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", begin + 4))
        firsts = {free_ports.free_row("127.0.0.1", 4, taken=(begin + 1,)) for _ in range(20)}
    assert firsts <= {begin + 5, begin + 6, begin + 7, begin + 8}


def test_hosts_on_one_machine_find_different_ports():
    from algorun.common import free_ports

    hosts = []
    for host in range(40):
        first = free_ports.free_row("127.0.0.1", 8, part=(host, 40))
        hosts.append({*range(first, first + 8), *free_ports.free_ports("127.0.0.1", 3, (host, 40))})
    assert len(set().union(*hosts)) == sum(map(len, hosts))


def test_no_row_of_ports_is_one_clear_error(monkeypatch):
    import pytest

    from algorun.common import free_ports
    from algorun.common.errors import UserError

    monkeypatch.setattr(free_ports, "is_free", lambda family, port: False)
    with pytest.raises(UserError, match="ports: 3 consecutive free ports were not found; allowed: 12000 to 29400"):
        free_ports.free_row("127.0.0.1", 3)


def test_a_row_is_found_where_the_kernels_own_range_begins_too_low(monkeypatch):
    from algorun.common import free_ports

    monkeypatch.setattr(free_ports, "first_ephemeral_port", lambda: 1024)
    assert free_ports.free_row("127.0.0.1", 2) >= free_ports.LOWEST_PORT


def test_a_port_that_is_held_is_found_by_nobody_and_a_hub_can_listen_on_it():
    import socket

    import pytest

    from algorun.common import free_ports

    with free_ports.hold("127.0.0.1") as held, socket.socket() as hub, socket.socket() as other:
        port = held.getsockname()[1]
        assert not free_ports.is_free(socket.AF_INET, port)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        hub.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        hub.bind(("127.0.0.1", port))
        hub.listen()
        socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
    assert free_ports.is_free(socket.AF_INET, port)


def test_of_two_that_find_the_same_port_one_takes_another(monkeypatch):
    from algorun.common import free_ports

    found = free_ports.free_ports("127.0.0.1", free_ports.HOLD_TRIES)
    monkeypatch.setattr(free_ports, "free_ports", lambda address, count: found)
    with free_ports.hold("127.0.0.1") as one, free_ports.hold("127.0.0.1") as two:
        assert [each.getsockname()[1] for each in (one, two)] == found[:2]
