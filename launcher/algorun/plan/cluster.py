"""Hosts, their slots and their ranks. Pure: every host computes the same ranks from the same input."""

from __future__ import annotations

from collections.abc import Mapping

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass, field
from algorun.job.config import JobConfig
from algorun.job.values import Sourced
from algorun.machine.probe import Machine

ALONE = Sourced(1, "standalone host: one process")
DRIVER = Sourced(1, "the driver")
NO_RANK = Sourced(0, "no rank: the driver is on the leader")


@dataclass(frozen=True, slots=True)
class Host:
    """One host and its ranks. The process of a standalone host gets a number too, for logs and failures only."""

    name: str
    node_rank: int  # its index in the order of resourceconfig.json
    slots: Sourced[int]
    first_rank: int  # the rank in its first slot
    group_rank: int | None  # its index among the hosts with ranks; None for a standalone host

    @property
    def joined(self) -> bool:
        return self.group_rank is not None

    @property
    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + self.slots.value)


@dataclass(frozen=True, slots=True)
class Cluster:
    """All hosts of the job in the order of resourceconfig.json."""

    hosts: tuple[Host, ...]

    @property
    def nnodes(self) -> int:
        return len(self.hosts)

    @property
    def members(self) -> tuple[Host, ...]:
        """The hosts with ranks: all except standalone hosts."""
        return tuple(host for host in self.hosts if host.joined)

    @property
    def world_size(self) -> int:
        """The number of ranks; 1 if all hosts are standalone."""
        return sum(host.slots.value for host in self.members) or 1

    @property
    def leader(self) -> Host:
        return self.hosts[0]

    def host(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)


@dataclass(frozen=True, slots=True)
class Meeting:
    """The result of the gate; a plan made offline assumes one."""

    master_addr: Sourced[str]  # the host of rank 0
    master_port: Sourced[int]  # a free port there, for the ranks
    engine_port: Sourced[int]  # another one, for the engine
    jax_port: Sourced[int]  # another one, for JAX's coordinator
    attempt: int = 0
    tf_ports: Mapping[str, int] = field(default_factory=dict)  # of each host the first of TensorFlow's ports
    addresses: Mapping[str, str] = field(default_factory=dict)  # of all hosts; only for an engine with a driver
    secret: str = ""  # by which the engine's processes know each other; only for such an engine


def own_slots(config: JobConfig, machine: Machine) -> Sourced[int]:
    """The slots of this host: the number that was asked for, else one per GPU, else one. A standalone host has one.

    An engine with a driver has one rank, on the leader.
    """
    if config.launch.engine.value.has_driver:
        return DRIVER if config.resources.current_host == config.resources.hosts[0] else NO_RANK
    if config.resources.current_host in config.launch.standalone:
        return ALONE
    if config.launch.slots is not None:
        return config.launch.slots
    if machine.gpus.value:
        return Sourced(machine.gpus.value, f"{machine.gpus.value} GPUs ({machine.gpus.source})")
    return Sourced(1, "no GPU: one rank per host")


def assumed_slots(config: JobConfig, own: Sourced[int]) -> dict[str, Sourced[int]]:
    """The slots of all hosts for a plan made offline. This host cannot know the other hosts' GPUs: it assumes as many as
    its own."""
    if config.launch.engine.value.has_driver:
        return dict.fromkeys(config.resources.hosts, NO_RANK) | {config.resources.hosts[0]: DRIVER}
    others = config.launch.slots or Sourced(own.value, "assumed equal")
    slots = {host: ALONE if host in config.launch.standalone else others for host in config.resources.hosts}
    return slots | {config.resources.current_host: own}


def resolve(config: JobConfig, slots: Mapping[str, Sourced[int]]) -> Cluster:
    """All hosts with their ranks: consecutive numbers in the order of the hosts; standalone hosts come last.

    Raises UserError on a host without slots. Of an engine with a driver only the first host needs one.
    """
    hosts, standalone = config.resources.hosts, config.launch.standalone
    only_first = config.launch.engine.value.has_driver
    resolved: dict[str, Host] = {}
    next_rank = group_rank = 0
    inside = [host for host in hosts if host not in standalone]
    places = {host: index for index, host in enumerate(hosts)}
    for name in (*inside, *(host for host in hosts if host in standalone)):
        if name not in slots or slots[name].value < (0 if only_first and places[name] else 1):
            raise UserError(f"slots of {name}", "0 slots", allowed="1 or more", fix="set --slots")
        joined = group_rank < len(inside)
        resolved[name] = Host(name, places[name], slots[name], next_rank, group_rank if joined else None)
        next_rank += slots[name].value
        group_rank += joined
    return Cluster(tuple(resolved[name] for name in hosts))


def interface(config: JobConfig, machine: Machine) -> Sourced[str]:
    """The network interface of the job: the one that resourceconfig.json names, if it exists; else that of the default
    route; else another one; else loopback. SDK v3's local mode names `ethwe`, which does not exist."""
    named = config.resources.interface
    if named and named in machine.interfaces:
        return Sourced(named, config.resources.source)
    why = f"{named!r} of {config.resources.source} does not exist here: " if named else ""
    if machine.default_interface:
        return Sourced(machine.default_interface, f"{why}default route")
    others = [name for name in machine.interfaces if name != "lo"]
    if others and len(config.resources.hosts) > 1:
        return Sourced(others[0], f"{why}first interface")
    return Sourced("lo", f"{why}no other interface")
