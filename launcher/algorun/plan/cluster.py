"""Hosts, their slots and the ranks that follow from them. Pure: the same input gives the same ranks on every host."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from algorun.errors import UserError
from algorun.job.config import JobConfig
from algorun.job.values import Sourced
from algorun.machine.probe import Machine

ALONE = Sourced(1, "outside the world of ranks: one process")


@dataclass(frozen=True, slots=True)
class Host:
    """One host: its index in the file's order, its slots, and the global rank of its first slot.

    `group_rank` is its index among the hosts whose ranks form the world. A host that stands alone (None) runs its
    processes outside of it; their numbers, after the world's, are for logs and failures only.
    """

    name: str
    node_rank: int
    slots: Sourced[int]
    first_rank: int
    group_rank: int | None

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
        """The hosts whose ranks form the world."""
        return tuple(host for host in self.hosts if host.joined)

    @property
    def world_size(self) -> int:
        """Ranks that form the world; 1 where every process stands alone."""
        return sum(host.slots.value for host in self.members) or 1

    @property
    def leader(self) -> Host:
        return self.hosts[0]

    def host(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)


@dataclass(frozen=True, slots=True)
class Meeting:
    """What the hosts agreed on when they met: where rank 0 listens. Offline it is assumed."""

    master_addr: Sourced[str]
    master_port: Sourced[int]
    engine_port: Sourced[int]
    attempt: int = 0


def own_slots(config: JobConfig, machine: Machine) -> Sourced[int]:
    """The ranks that this host carries: what was asked for, else one per GPU, else one on a CPU host.

    A host outside the world of ranks runs the program once.
    """
    if config.resources.current_host in config.launch.outside:
        return ALONE
    if config.launch.slots is not None:
        return config.launch.slots
    if machine.gpus.value:
        return Sourced(machine.gpus.value, f"{machine.gpus.value} GPUs ({machine.gpus.source})")
    return Sourced(1, "no GPU: one rank per host")


def assumed_slots(config: JobConfig, own: Sourced[int]) -> dict[str, Sourced[int]]:
    """Slots of all hosts for a plan made offline: a host knows only its own GPUs and takes the others for equal."""
    others = config.launch.slots or Sourced(own.value, "assumed equal")
    slots = {host: ALONE if host in config.launch.outside else others for host in config.resources.hosts}
    return slots | {config.resources.current_host: own}


def resolve(
    hosts: tuple[str, ...], slots: Mapping[str, Sourced[int]], outside: Collection[str] = frozenset()
) -> Cluster:
    """Ranks for all hosts: consecutive numbers, in the order of `hosts`. Raises UserError on a host without slots.

    Hosts `outside` the world of ranks come last and stand alone.
    """
    resolved: dict[str, Host] = {}
    next_rank = group_rank = 0
    inside = [host for host in hosts if host not in outside]
    places = {host: index for index, host in enumerate(hosts)}
    for name in (*inside, *(host for host in hosts if host in outside)):
        if name not in slots or slots[name].value < 1:
            raise UserError(f"slots of {name}", "no slot", allowed="1 or more", fix="set --slots")
        joined = group_rank < len(inside)
        resolved[name] = Host(name, places[name], slots[name], next_rank, group_rank if joined else None)
        next_rank += slots[name].value
        group_rank += joined
    return Cluster(tuple(resolved[name] for name in hosts))


def interface(config: JobConfig, machine: Machine) -> Sourced[str]:
    """The network interface of the job: the platform's if it exists here, else the default route's, else loopback.

    SDK v3's local mode names `ethwe`, which no container has.
    """
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
