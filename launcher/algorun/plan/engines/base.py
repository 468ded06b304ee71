"""The input and output of an engine's planning. Pure. Engines know nothing else of the plan that they are a part of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from algorun.common.fast_dataclasses import dataclass, field

if TYPE_CHECKING:
    from algorun.machine.openmpi import OpenMpi
    from algorun.machine.ray import NodeResources, Ray


@dataclass(frozen=True, slots=True)
class Programs:
    """Our own programs on a host."""

    python: str  # the interpreter
    home: str  # the folder of `algorun.inside`

    @property
    def rank(self) -> tuple[str, ...]:
        """The command that an engine starts for each rank (inside/rank_exec.py)."""
        return (self.python, "-I", "-S", f"{self.home}/rank_exec.py")

    @property
    def rsh(self) -> tuple[str, ...]:
        """The remote shell for mpirun (inside/rsh.py)."""
        return (self.python, "-I", "-S", f"{self.home}/rsh.py")


@dataclass(frozen=True, slots=True)
class RankHost:
    """One host with ranks."""

    name: str
    slots: int
    group_rank: int  # its index among the hosts with ranks


@dataclass(frozen=True, slots=True)
class RayCluster:
    """What the ray engine needs besides."""

    installation: Ray | None  # of the planning host
    addresses: Mapping[str, str]  # of all hosts
    offers: Mapping[str, NodeResources]  # of all hosts; those of others are assumed to be the planning host's
    groups: Mapping[str, tuple[str, ...]]  # instance groups of each host
    secret: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """The ranks that an engine has to start. The job's first host is its leader, with or without ranks."""

    hosts: tuple[RankHost, ...]  # the first one has rank 0
    world_size: int
    leader: str
    alone: bool  # the job has one host
    programs: Programs
    master_addr: str  # the host of rank 0
    master_port: int  # a free port there, for the ranks
    engine_port: int  # another one, for the engine
    interface: str  # the job's network interface
    openmpi: OpenMpi | None
    options: tuple[str, ...]  # the user's own options for the engine
    per_host: bool  # one rank on each host
    simulated: bool  # all hosts are on one machine
    ray: RayCluster | None = None  # only for the ray engine


@dataclass(frozen=True, slots=True)
class Pieces:
    """An engine's own processes."""

    starters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # host name: argv; other hosts start none
    environ: Mapping[str, str] = field(default_factory=dict)  # of these processes
    contract: bool = True  # its ranks get torchrun's variables; False for a driver, which is no rank of a world
    keeps_contract: bool = False  # the engine sets RANK, MASTER_ADDR and torchrun's other variables itself
    addresses: Mapping[str, str] = field(default_factory=dict)  # of the hosts, if these processes use them
    # Of these processes and of every rank, with the source of each. A user's own value of the same name wins.
    shared: Mapping[str, tuple[str, str]] = field(default_factory=dict)
