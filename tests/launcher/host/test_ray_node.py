"""What the output of `ray start` says of a node. The texts are those of Ray 2.60.0."""

from __future__ import annotations

import pytest

from algorun.control.failures.failure import Failure
from algorun.host.engines.ray.node import RayNode
from algorun.host.ranks.rank_port import LONGEST_FOR_RAY

STARTED = b"2026-11-25 02:30:48,080\tSUCC scripts.py:1251 -- Ray runtime started.\n"
PROMISE = (
    b"2026-11-25 02:33:15,065\tINFO scripts.py:1269 -- Running subprocesses are monitored and a message will be printed if "
    b"any of them terminate unexpectedly. Subprocesses exit with SIGTERM will be treated as graceful, thus NOT reported.\n"
)
DYING = b"2026-11-25 02:34:10,186\tERR scripts.py:1307 -- Some Ray subprocesses exited unexpectedly:\n"
ENDED = b"2026-11-25 02:34:10,186\tERR scripts.py:87 -- raylet [exit code=%d]\n"


class Node:
    def __init__(self) -> None:
        self.alive = 0
        self.failures: list[Failure] = []
        self.node = RayNode("algo-2", self._joined, self.failures.append)

    def _joined(self) -> None:
        self.alive += 1


def test_a_node_is_alive_once_ray_says_so():
    found = Node()
    assert found.node.read(PROMISE) == PROMISE
    assert not found.node.is_alive
    for _ in range(2):
        found.node.read(STARTED)
    assert (found.alive, found.node.is_alive, found.failures) == (1, True, [])


@pytest.mark.parametrize(("code", "how"), [(-9, "ended by signal 9"), (1, "ended with 1")])
@pytest.mark.parametrize("together", [True, False])
def test_a_process_of_ray_that_ends_is_named(code, how, together):
    found = Node()
    lines = [STARTED, PROMISE, DYING, ENDED % code, ENDED % 3]
    for each in [b"".join(lines)] if together else lines:
        found.node.read(each)
    found.node.starter_ended(1, "Remaining processes will be killed.")
    (failure,) = found.failures
    assert failure.headline() == f"node: algo-2, exit 66: Ray's process raylet {how}"
    assert failure.age_s == 1.0, "Ray looks once a second"


@pytest.mark.parametrize(
    ("code", "tail", "says"),
    [
        (1, "Traceback ..\nConnectionError: no head\n\n", "ray start ended with 1: ConnectionError: no head"),
        (-9, "some line\n", "ray start ended with 137 (SIGKILL)"),
        (0, "", "ray start ended with 0"),
    ],
)
def test_the_end_of_ray_start_is_the_end_of_the_node(code, tail, says):
    found = Node()
    found.node.starter_ended(code, tail)
    assert [each.message for each in found.failures] == [says]
    assert not found.failures[0].secondary, "a host without its node is a cause"


def test_the_paths_of_ray_s_sockets_fit():
    session = "/r999/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store"
    assert LONGEST_FOR_RAY + len("/algorun-123456789012") + len(session) <= 107
