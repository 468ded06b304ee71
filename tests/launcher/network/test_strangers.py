"""Many connections to the hub that say nothing do not keep a host of the job out."""

from __future__ import annotations

import resource
import selectors
import socket
from collections.abc import Iterator

import pytest

from algorun.control.wire.messages import Go, Welcome
from algorun.network import reception

from .pair import Pair

MANY = 3000
JOIN_S = 15.0  # alone it takes 0.02 s; without the rule the gate ends first


@pytest.fixture
def pair() -> Iterator[Pair]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * MANY), hard))
    made = Pair()
    yield made
    made.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Crowd:
    """Connections that say nothing, and are made anew when the hub has closed them."""

    def __init__(self, where: tuple[str, int], count: int, addresses: list[str]) -> None:
        self._where, self._selector = where, selectors.DefaultSelector()
        for number in range(count):
            self._connect(addresses[number % len(addresses)])

    def _connect(self, address: str) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind((address, 0))
        sock.connect_ex(self._where)
        self._selector.register(sock, selectors.EVENT_READ, address)

    def again(self) -> int:
        """Those that were closed connect once more. Returns how many."""
        closed = 0
        for key, _ in self._selector.select(0):
            try:
                data = key.fileobj.recv(4096)  # type: ignore[union-attr]
            except OSError:
                data = b""
            if not data:
                self._selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
                self._connect(key.data)
                closed += 1
        return closed

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()


@pytest.mark.slow(but=["one address"])
@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.9"], ["127.0.0.1"], [f"127.0.{number // 250}.{number % 250 + 2}" for number in range(1000)]],
    ids=["one address", "the host's own address", "a thousand addresses"],
)
def test_a_host_joins_beside_thousands_of_silent_connections(addresses, pair):
    pair.link.close()
    crowd = Crowd(pair.relay.hub, MANY, addresses)
    pair.until(lambda: len(pair.server._reception._strangers) >= reception.STRANGERS)
    pair.follow()
    begin, again = pair.loop.now(), 0

    def joined() -> bool:
        nonlocal again
        again += crowd.again()
        return Welcome in pair.kinds()

    pair.until(joined)
    assert pair.loop.now() - begin < JOIN_S
    assert len(pair.server._reception._strangers) <= reception.STRANGERS
    assert again, "the hub has closed nobody"
    pair.run()
    assert Go in pair.kinds()
    crowd.close()
    warned = [line for line in pair.leader.told if "refused" in line]
    assert len(warned) == 1, "a flood of strangers is one line"
    assert f"{reception.STRANGERS} others wait to be heard" in warned[0]


def test_the_silent_one_of_the_fullest_address_makes_room_and_the_job_s_own_addresses_come_last(pair):
    """Ten addresses with one connection each stay; the one with the rest gives way, its oldest first."""
    pair.link.close()
    few = [Crowd(pair.relay.hub, 1, [f"127.0.1.{number + 1}"]) for number in range(10)]
    crowd = Crowd(pair.relay.hub, reception.STRANGERS + 20, ["127.0.0.9"])
    pair.until(lambda: len(pair.server._reception._strangers) >= reception.STRANGERS)
    pair.turn(20)
    peers = [each.peer for each in pair.server._reception._strangers]
    assert [peer for peer in peers if peer.startswith("127.0.1.")] == [f"127.0.1.{number + 1}" for number in range(10)]
    for each in (*few, crowd):
        each.close()
