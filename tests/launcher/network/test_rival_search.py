"""A leader asks the hosts that it misses. The test decides when a connection is made and when a time is over."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from algorun.common.event_loop import Loop, Timer
from algorun.control.hub.hub import Hub
from algorun.control.wire import wire
from algorun.control.wire.introduction import Applicant, introduced
from algorun.control.wire.messages import Heartbeat, Nonce
from algorun.job.limits import ControlSettings, Limits
from algorun.network.nonces import fresh
from algorun.network.rival_search import LOOK_S, Lookout
from tests.launcher.jobs import hello

LIMIT_S = 20.0
REFUSED = ConnectionRefusedError(111, "Connection refused")


class HandLoop(Loop):
    """Connects to nobody, and no timer fires, unless the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.connects: list = []  # what takes the result of each connect, in the order of the requests
        self.timers: list[tuple[float, Timer]] = []

    def in_thread(self, work, done) -> None:
        self.connects.append(done)

    def after(self, delay_s: float, callback) -> Timer:
        timer = Timer(0.0, callback)
        self.timers.append((delay_s, timer))
        return timer

    def elapse(self, delay_s: float) -> None:
        """The timers of this length that run now are over."""
        over = [timer for delay, timer in self.timers if delay == delay_s]
        self.timers = [(delay, timer) for delay, timer in self.timers if delay != delay_s]
        for timer in over:
            if timer.callback is not None:
                timer.callback()


class AskedHub(Hub):
    """Keeps which leaders had answered at the end of each look."""

    def __init__(self, *hosts: str) -> None:
        super().__init__(0.0, hosts, Limits())
        self.hello(0.0, hello(hosts[0]))
        self.looks: list[set[str]] = []

    def rivals_asked(self, now, answered):
        self.looks.append(set(answered))
        return []


class Search:
    """A leader that misses algo-2 and algo-3, and a place where a connection to either of them can be made."""

    def __init__(self) -> None:
        self.loop, self.hub = HandLoop(), AskedHub("algo-1", "algo-2", "algo-3")
        settings = ControlSettings({}, 1, "token", own_token=False)
        self.lookout = Lookout(self.loop, self.hub, Applicant(hello("algo-1"), "token"), settings, lambda sends: None)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.sockets = [self.listener]

    def look(self) -> list:
        """Begins a look. Returns what takes the result of each of its connects."""
        before = len(self.loop.connects)
        self.lookout.look()
        return self.loop.connects[before:]

    def connection(self) -> tuple[socket.socket, socket.socket]:
        """This host's end and the other one."""
        near = socket.create_connection(self.listener.getsockname(), LIMIT_S)
        far, _ = self.listener.accept()
        far.settimeout(LIMIT_S)
        self.sockets += [near, far]
        return near, far

    def until_looks(self, count: int) -> None:
        end = time.monotonic() + LIMIT_S
        while len(self.hub.looks) < count:
            assert time.monotonic() < end, self.hub.looks
            self.loop.post(self.loop.stop)
            self.loop.run()

    def turn(self) -> None:
        self.loop.post(self.loop.stop)
        self.loop.run()

    def close(self) -> None:
        self.lookout.close()
        for each in self.sockets:
            each.close()
        self.loop.close()


@pytest.fixture
def search() -> Iterator[Search]:
    made = Search()
    yield made
    made.close()


def test_a_late_failure_to_connect_does_not_remove_a_leader_that_has_answered(search):
    late, _ = search.look()
    search.loop.elapse(LOOK_S)
    algo_2, algo_3 = search.look()
    near, far = search.connection()
    algo_2(near)
    algo_3(REFUSED)
    nonce = fresh()
    far.sendall(wire.encode(Nonce(nonce)))
    search.turn()
    _, seal = introduced("token", nonce, far.makefile("rb").readline()[:-1])
    far.sendall(seal.close(wire.encode(Heartbeat())))
    search.until_looks(2)
    late(REFUSED)
    (algo_3,) = search.look()
    algo_3(REFUSED)
    assert search.hub.looks == [set(), {"algo-2"}, {"algo-2"}]


def test_what_an_earlier_look_reaches_late_does_not_count_in_the_next_one(search):
    late_2, late_3 = search.look()
    search.loop.elapse(LOOK_S)
    algo_2, algo_3 = search.look()
    near, far = search.connection()
    late_2(near)
    late_3(REFUSED)
    algo_2(REFUSED)
    assert search.hub.looks == [set()], "algo-3 has not answered in this look"
    algo_3(REFUSED)
    assert search.hub.looks == [set(), set()]
    assert far.recv(1) == b"", "the late connection was not closed"
