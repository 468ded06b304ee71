"""This host's way to the hub: the hub itself on the leader, a TCP connection to it elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from algorun.control.hub import Hub
from algorun.control.messages import Hello, Message
from algorun.event_loop import Loop
from algorun.job.config import JobConfig
from algorun.machine.probe import Machine
from algorun.plan import cluster

SILENT_BEATS = 2  # of the hub, until a follower connects anew


class Channel(Protocol):
    """What a host has of the control channel."""

    @property
    def finished(self) -> bool:
        """True once this host may leave: on the leader, when the others have left."""

    @property
    def seen(self) -> str:
        """What answers where the hub should be, "" once the hub has."""

    def send(self, message: Message) -> None: ...
    def close(self) -> None: ...


def own_address(config: JobConfig, machine: Machine) -> str:
    """This host's address in the job's network."""
    if len(config.resources.hosts) == 1:
        return "127.0.0.1"
    from . import addresses

    nic = cluster.interface(config, machine).value
    return addresses.own_address(config.resources.current_host, config.control.addresses, nic)


def to_hub(
    loop: Loop,
    config: JobConfig,
    machine: Machine,
    hello: Hello,
    receive: Callable[[Message], None],
    on_lost: Callable[[str], None],
    on_finished: Callable[[], None],
    tell: Callable[[str], None],
) -> Channel:
    """Says hello, at once or as soon as the hub can be reached. Raises UserError where its port is taken."""
    hosts, limits = config.resources.hosts, config.limits
    leader = hosts[0]
    if config.resources.current_host != leader:
        from .link import HubLink

        where = (config.control.addresses.get(leader, leader), config.control.port)
        source = config.control.addresses.get(config.resources.current_host, "")
        return HubLink(
            loop, where, source, config.control.token, hello, receive, on_lost, SILENT_BEATS * limits.heartbeat_s,
            leader=leader, tell=tell,
        )  # fmt: skip
    from .hub_server import HubShell

    hub = Hub(loop.now(), hosts, limits, config.launch.restarts)
    shell = HubShell(loop, hub, config.control.token, config.control.own_token, config.control.addresses)
    shell.on_finished, shell.tell = on_finished, tell
    if len(hosts) > 1:
        shell.listen(own_address(config, machine), config.control.port)
    shell.join(hello, receive)
    return shell
