"""The nodes of a Ray cluster: the driver starts once every host has its node. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from algorun.control.wire.messages import Go, NodeAlive, Ready


class Nodes:
    """The nodes of one attempt, as the leader hears of them."""

    def __init__(self, hosts: Sequence[str], attempt: int) -> None:
        self._hosts, self._attempt = tuple(hosts), attempt
        self._alive: set[str] = set()

    def heard(self, message: NodeAlive) -> None:
        """A node is alive. News of another attempt is too late."""
        if message.attempt == self._attempt and message.host in self._hosts:
            self._alive.add(message.host)

    @property
    def all_alive(self) -> bool:
        return len(self._alive) == len(self._hosts)

    @property
    def missing(self) -> list[str]:
        """The hosts without a node, in the job's order."""
        return [host for host in self._hosts if host not in self._alive]


def before_the_gate(hosts: tuple[str, ...], ready: Ready) -> Go:
    """What the leader knows of its `go` while other hosts are missing: all that its head needs."""
    leader = hosts[0]
    return Go(
        attempt=0,
        master_addr=ready.master_addr,
        master_port=ready.master_port,
        slots={host: ready.slots if host == leader else 0 for host in hosts},
        engine_port=ready.engine_port,
        jax_port=ready.jax_port,
        addresses={leader: ready.address},
        secret=ready.secret,
    )
