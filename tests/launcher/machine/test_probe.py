"""What the launcher reads of this machine."""

from __future__ import annotations

import pytest

from algorun.machine import probe

HEAD = "Iface\tDestination\tGateway\tFlags\tRefCnt\n"


@pytest.mark.parametrize(
    ("routes", "expected"),
    [
        (f"{HEAD}eth1\t000012AC\t0\t0001\t0\neth0\t00000000\t010012AC\t0003\t0\n", "eth0"),
        (f"{HEAD}eth0\t00000000\t010012AC\t0002\t0\n", ""),  # a route that is down
        (HEAD, ""),
        ("", ""),
    ],
)
def test_the_interface_of_the_default_route(routes, expected, monkeypatch):
    monkeypatch.setattr(probe, "read_text", lambda path: routes if path == "/proc/net/route" else "")
    assert probe.default_interface() == expected
