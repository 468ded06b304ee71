"""This host's way to the hub: the hub itself on the leader, a TCP connection to it elsewhere."""

from __future__ import annotations

import os
from typing import Protocol

from algorun.common.event_loop import Loop
from algorun.control.wire.messages import Hello, Message
from algorun.job.config import JobConfig
from algorun.machine.probe import Machine
from algorun.plan import cluster

from .channel_user import ChannelUser

SILENT_BEATS = 2  # of the hub, until a follower connects anew


class ControlChannel(Protocol):
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


def to_hub(loop: Loop, config: JobConfig, machine: Machine, hello: Hello, user: ChannelUser) -> ControlChannel:
    """Says hello, at once or as soon as the hub can be reached. Raises UserError where its port is taken."""
    if config.resources.current_host != config.resources.hosts[0]:
        return follow(loop, config, hello, user)
    return lead(loop, config, machine, hello, user)


def lead(loop: Loop, config: JobConfig, machine: Machine, hello: Hello, user: ChannelUser) -> ControlChannel:
    """The hub, for this host and for all others."""
    from algorun.control.hub.hub import Hub

    from .hub_server import HubServer

    hosts = config.resources.hosts
    server = HubServer(loop, Hub(loop.now(), hosts, config.limits, config.launch.restarts), config.control, user)
    if len(hosts) > 1:
        server.listen(own_address(config, machine))
    server.join(hello)
    return server


def follow(loop: Loop, config: JobConfig, hello: Hello, user: ChannelUser) -> ControlChannel:
    """A connection to the leader's hub."""

    from algorun.control.wire.introduction import Applicant, Introduction

    from .link import HubLink
    from .spare_search import Route

    leader, control = config.resources.hosts[0], config.control
    where = (control.addresses.get(leader, leader), control.port)
    route = Route(leader, where, control.addresses.get(hello.host, ""))
    silence_s = SILENT_BEATS * config.limits.heartbeat_s
    introduction = Introduction(loop.now(), Applicant(hello, control.token), os.urandom(16).hex(), silence_s)
    return HubLink(loop, route, introduction, user)
