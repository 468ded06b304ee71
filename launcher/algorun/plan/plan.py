"""The plan: everything that will run, on every host, decided before anything runs. Pure; JSON in and out."""

from __future__ import annotations

from dataclasses import dataclass

from algorun.job.config import JobConfig
from algorun.job.engine import Engine
from algorun.job.settings import Limits
from algorun.job.values import Sourced
from algorun.machine.openmpi import OpenMpi
from algorun.machine.probe import Machine

from . import rank_env as env
from . import sagemaker_env
from .cluster import Cluster, Host, Meeting, interface
from .engines.base import Pieces, Programs, Wanted
from .engines.registry import STARTERS
from .rank_env import Variable

FORMAT = 1
ASSUMED_MASTER_PORT = 29500  # torchrun's default; a run takes a free port of the leader instead


@dataclass(frozen=True, slots=True)
class RankPlan:
    """One rank and the variables that it alone has."""

    rank: int
    local_rank: int
    env: tuple[Variable, ...]


@dataclass(frozen=True, slots=True)
class HostPlan:
    """One host: its ranks, and the engine's own process (`starter`), empty where the supervisor starts the ranks."""

    host: str
    node_rank: int
    slots: Sourced[int]
    env: tuple[Variable, ...]
    ranks: tuple[RankPlan, ...]
    starter: tuple[str, ...]
    joined: bool = True  # False for a host whose process stands alone, outside the world of ranks


@dataclass(frozen=True, slots=True)
class Plan:
    """All hosts of one attempt. `argv` and `cwd` are every rank's; `env` is shared by all ranks.

    `contract` is what torchrun gives to all ranks alike; processes that stand alone don't get it. `openmpi` is what the
    planning host has, None under other engines.
    """

    format: int
    engine: Sourced[Engine]
    attempt: int
    per_host: bool
    nnodes: int
    world_size: int
    argv: tuple[str, ...]
    cwd: str
    interface: Sourced[str]
    env: tuple[Variable, ...]
    contract: tuple[Variable, ...]
    starter_env: tuple[Variable, ...]
    keeps_contract: bool
    limits: Limits
    compatibility: Sourced[str] | None  # AWS's closed libraries that the compatibility layer stands for
    openmpi: OpenMpi | None
    hosts: tuple[HostPlan, ...]

    def host(self, name: str) -> HostPlan:
        return next(host for host in self.hosts if host.host == name)

    def environ(self, host: HostPlan, rank: RankPlan) -> dict[str, str]:
        """All variables that the plan gives to one rank."""
        contract = self.contract if host.joined else ()
        return {v.name: v.value for v in (*self.env, *contract, *host.env, *rank.env)}


def first_host(config: JobConfig) -> str:
    """The host that carries rank 0: the leader, unless it stands outside the world of ranks."""
    return next(
        (host for host in config.resources.hosts if host not in config.launch.outside), config.resources.hosts[0]
    )


def offline(config: JobConfig) -> Meeting:
    """The meeting that a plan without a run assumes."""
    first = first_host(config)
    # A single host needs no name service; its own name may not resolve.
    address = config.control.addresses.get(first, first if len(config.resources.hosts) > 1 else "127.0.0.1")
    return Meeting(
        Sourced(address, "leader" if first == config.resources.hosts[0] else f"{first} carries rank 0"),
        Sourced(ASSUMED_MASTER_PORT, "assumed; chosen at the gate"),
        Sourced(ASSUMED_MASTER_PORT + 1, "assumed; chosen at the gate"),
    )


def _host(
    host: Host,
    config: JobConfig,
    machine: Machine,
    sagemaker: sagemaker_env.SageMakerEnvironment,
    pieces: Pieces,
    nic: Sourced[str],
) -> HostPlan:
    ranks = tuple(
        RankPlan(rank, local, tuple(env.rank_contract(rank, local)) if host.joined else ())
        for local, rank in enumerate(host.ranks)
    )
    variables = (
        *sagemaker.host(host),
        *env.host_contract(host),
        *env.defaults(nic, machine, host.slots.value, config.environ),
    )
    starter = pieces.starters.get(host.name, ())
    return HostPlan(host.name, host.node_rank, host.slots, variables, ranks, starter, host.joined)


def _python_path(config: JobConfig) -> list[Variable]:
    """The code folder on the module path of a job's script: scripts in subfolders rely on it, as under the toolkit."""
    if config.entry.kind == "bundled" or config.entry.source == "command line":
        return []
    before = config.environ.get("PYTHONPATH", "")
    return [Variable("PYTHONPATH", f"{config.code}:{before}" if before else config.code, "code folder")]


def make(
    config: JobConfig, cluster: Cluster, machine: Machine, programs: Programs, meeting: Meeting | None = None
) -> Plan:
    """The plan of one attempt. The same input gives the same plan on every host.

    `machine` describes the host that plans; a plan for other hosts takes its CPUs and GPUs for theirs.
    """
    meeting = meeting or offline(config)
    nic = interface(config, machine)
    launch, openmpi = config.launch, machine.openmpi
    wanted = Wanted(
        cluster, programs, meeting, nic.value, openmpi, launch.engine_options,
        per_host=launch.per_host, simulated=bool(config.control.addresses),
    )  # fmt: skip
    pieces = STARTERS[launch.engine.value](wanted)
    sagemaker = sagemaker_env.SageMakerEnvironment(config, machine, nic.value)
    contract = env.shared_contract(cluster, meeting.master_addr, meeting.master_port, meeting.attempt, launch.restarts)
    return Plan(
        format=FORMAT,
        engine=launch.engine,
        attempt=meeting.attempt,
        per_host=launch.per_host,
        nnodes=cluster.nnodes,
        world_size=cluster.world_size,
        argv=config.entry.argv(programs.python),
        cwd=config.entry.cwd,
        interface=nic,
        env=(*sagemaker.shared(), *_python_path(config)),
        contract=tuple(contract),
        starter_env=tuple(Variable(k, v, launch.engine.value) for k, v in pieces.environ.items()),
        keeps_contract=pieces.keeps_contract,
        limits=config.limits,
        compatibility=launch.compatibility,
        openmpi=openmpi if launch.engine.value.needs_openmpi else None,
        hosts=tuple(_host(h, config, machine, sagemaker, pieces, nic) for h in cluster.hosts),
    )


CONTRACT = frozenset(
    (
        *("RANK", "LOCAL_RANK", "ROLE_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
        *("ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    )
)


OURS = ("RESTART_COUNT", "MAX_RESTARTS")


def contract_names(plan: Plan, host: HostPlan, rank: RankPlan) -> list[str]:
    """The variables of one rank that torchrun computes itself when it is the engine. Attempts are the hub's to count."""
    names = plan.environ(host, rank)
    theirs = [name for name in names if name.startswith("TORCHELASTIC_") and not name.endswith(OURS)]
    return [name for name in names if name in CONTRACT] + theirs
