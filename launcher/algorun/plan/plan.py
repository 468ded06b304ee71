"""The plan: every process of an attempt on every host, decided before anything starts. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from algorun.common.fast_dataclasses import dataclass
from algorun.job import hyperparameter_groups as groups
from algorun.job import settings
from algorun.job.config import JobConfig
from algorun.job.engine import Engine
from algorun.job.entry import TRAINING
from algorun.job.limits import Limits
from algorun.job.values import Sourced
from algorun.machine.openmpi import OpenMpi
from algorun.machine.probe import Machine
from algorun.machine.ray import Ray

from . import framework_env, sagemaker_env, simple_sagemaker_env
from . import rank_env as env
from .cluster import Cluster, Host, Meeting, interface
from .engines.base import Pieces, Programs, RankHost, Wanted
from .engines.registry import starter
from .framework_env import Workers
from .rank_env import Variable

if TYPE_CHECKING:
    from .engines.base import RayCluster

FORMAT = 1
ASSUMED_MASTER_PORT = 29500  # torchrun's default, for plans made offline; a job uses a free port


@dataclass(frozen=True, slots=True)
class RankPlan:
    """One rank and the variables that it alone has."""

    rank: int
    local_rank: int
    env: tuple[Variable, ...]


@dataclass(frozen=True, slots=True)
class HostPlan:
    """One host and its ranks."""

    host: str
    node_rank: int
    slots: Sourced[int]
    env: tuple[Variable, ...]  # of all ranks of this host
    ranks: tuple[RankPlan, ...]
    starter: tuple[str, ...]  # argv of the engine's own process; empty if this host has none
    joined: bool = True  # False for a standalone host
    address: str = ""  # for an engine with a driver


@dataclass(frozen=True, slots=True)
class Plan:
    """One attempt on all hosts."""

    format: int  # version of the JSON
    engine: Sourced[Engine]
    attempt: int
    per_host: bool
    nnodes: int
    world_size: int
    argv: tuple[str, ...]  # of every rank
    cwd: str  # of every rank
    interface: Sourced[str]
    env: tuple[Variable, ...]  # of every rank
    contract: tuple[Variable, ...]  # of every rank, but not of standalone hosts: torchrun's variables, JAX's
    starter_env: tuple[Variable, ...]  # of the engine's own processes
    keeps_contract: bool  # the engine sets torchrun's variables itself
    limits: Limits
    compatibility: Sourced[str] | None  # AWS's closed libraries that our compatibility layer replaces
    openmpi: OpenMpi | None  # Open MPI of the planning host, for the mpirun engine
    tensorflow: Workers | None  # for TF_CONFIG of every rank
    ray: Ray | None  # Ray of the planning host, for the ray engine
    preparation: tuple[Sourced[str], ...]  # sentences: what each host does before the ranks start
    hosts: tuple[HostPlan, ...]
    is_default: bool = False  # one rank per host, because nobody has said how many a host gets
    warning: str = ""  # GPUs that no rank is for
    groups: tuple[str, ...] = ()  # lines of a bundled entrypoint about ranks that compute together

    def host(self, name: str) -> HostPlan:
        return next(host for host in self.hosts if host.host == name)

    @property
    def hosts_by_address(self) -> dict[str, str]:
        """The names of hosts whose addresses the engine uses."""
        return {host.address: host.host for host in self.hosts if host.address}

    def environ(self, host: HostPlan, rank: RankPlan) -> dict[str, str]:
        """All variables that the plan gives to one rank."""
        contract = self.contract if host.joined else ()
        environ = {v.name: v.value for v in (*self.env, *contract, *host.env, *rank.env)}
        if self.tensorflow is not None and host.joined:
            environ[framework_env.TF_CONFIG] = self.tensorflow.tf_config(rank.rank)
        return environ

    def starter_environ(self, host: HostPlan) -> dict[str, str]:
        """All variables that the plan gives to the engine's own process on a host.

        Workers of a Ray cluster inherit from it, so they get what the driver gets.
        """
        variables = (*self.env, *host.env) if self.engine.value.has_driver else ()
        return {v.name: v.value for v in (*variables, *self.starter_env)}


def first_host(config: JobConfig) -> str:
    """The host of rank 0: the leader, unless the leader is a standalone host."""
    return next(
        (host for host in config.resources.hosts if host not in config.launch.standalone), config.resources.hosts[0]
    )


def offline(config: JobConfig) -> Meeting:
    """The meeting that a plan made offline assumes."""
    first = first_host(config)
    # On a single host ranks need no name, and its name may not resolve.
    address = config.control.addresses.get(first, first if len(config.resources.hosts) > 1 else "127.0.0.1")
    return Meeting(
        Sourced(address, "leader" if first == config.resources.hosts[0] else f"{first} carries rank 0"),
        Sourced(ASSUMED_MASTER_PORT, "assumed; chosen at the gate"),
        Sourced(ASSUMED_MASTER_PORT + 1, "assumed; chosen at the gate"),
        Sourced(ASSUMED_MASTER_PORT + 2, "assumed; chosen at the gate"),
    )


def _ranks(
    host: Host, config: JobConfig, machine: Machine, sagemaker: sagemaker_env.SageMakerEnvironment, pieces: Pieces
) -> tuple[RankPlan, ...]:
    """The ranks of a host, each with its own variables. A standalone host's process has none, nor has a driver."""
    out = []
    for local_rank, rank in enumerate(host.ranks):
        own = env.rank_contract(rank, local_rank)
        own += [env.data_parallel(local_rank)] if sagemaker.data_parallel else []
        own += framework_env.jax_devices(local_rank, host.slots.value, machine.gpus, config.environ)
        out.append(RankPlan(rank, local_rank, tuple(own) if host.joined and pieces.contract else ()))
    return tuple(out)


def _host(
    host: Host,
    config: JobConfig,
    machine: Machine,
    sagemaker: sagemaker_env.SageMakerEnvironment,
    pieces: Pieces,
    nic: Sourced[str],
) -> HostPlan:
    variables = (
        *sagemaker.host(host),
        *simple_sagemaker_env.of_host(config, host),
        *(env.host_contract(host) if pieces.contract else ()),
        *env.defaults(nic, machine, host.slots.value if pieces.contract else None, config.environ),
    )
    starter = pieces.starters.get(host.name, ())
    ranks = _ranks(host, config, machine, sagemaker, pieces)
    address = pieces.addresses.get(host.name, "")
    return HostPlan(host.name, host.node_rank, host.slots, variables, ranks, starter, host.joined, address)


def _python_path(config: JobConfig) -> list[Variable]:
    """PYTHONPATH with the code folder, for a job's script, as under AWS's toolkit: scripts in subfolders rely on it."""
    if config.entry.kind == "bundled" or not (config.request.from_job or config.request.code):
        return []
    before = config.environ.get("PYTHONPATH", "")
    return [Variable("PYTHONPATH", f"{config.code}:{before}" if before else config.code, "code folder")]


def _preparation(config: JobConfig) -> tuple[Sourced[str], ...]:
    own, request, out = config.hyperparameters.own, config.request, []
    if named := own.args_file if request.from_job else request.args_file:
        folder = config.code if request.from_job or request.code else config.entry.cwd
        text = f"read the program's arguments from {named} in {folder}"
        text += ", once the code is there" if config.entry.kind == "pending" else ""
        out.append(Sourced(text, f"hyperparameter {groups.ARGS_FILE}" if request.from_job else "--args-file"))
    source = settings.EXTRACT.name if own.extract is None else f"hyperparameter {groups.EXTRACT}"
    channels = config.setup.extract if config.setup is not None else ()
    out += [Sourced(f"unpack the archives of channel {each.name} in {each.folder}", source) for each in channels]
    return tuple(out)


def _wanted(config: JobConfig, cluster: Cluster, machine: Machine, programs: Programs, meeting: Meeting) -> Wanted:
    """What the engine has to start."""
    return Wanted(
        hosts=tuple(RankHost(host.name, host.slots.value, at) for at, host in enumerate(cluster.members)),
        world_size=cluster.world_size,
        leader=cluster.leader.name,
        alone=cluster.nnodes == 1,
        programs=programs,
        master_addr=meeting.master_addr.value,
        master_port=meeting.master_port.value,
        engine_port=meeting.engine_port.value,
        interface=interface(config, machine).value,
        openmpi=machine.openmpi,
        options=config.launch.engine_options,
        per_host=config.launch.per_host,
        simulated=bool(config.control.addresses),
        ray=_ray_cluster(config, machine, meeting) if config.launch.engine.value.has_driver else None,
    )


def _ray_cluster(config: JobConfig, machine: Machine, meeting: Meeting) -> RayCluster:
    from . import ray_cluster  # imported late: only this engine uses it

    return ray_cluster.make(config, machine, meeting)


def _measuring(config: JobConfig, python: str, attempt: int) -> tuple[str, ...]:
    """What comes before the command of a rank if hosts and links are to be measured: in the first attempt only."""
    if config.preflight is None or attempt:
        return ()
    kind, seconds = config.preflight
    return (python, "-I", "-u", "-m", f"{TRAINING}.jobs.measured_start", kind, f"{seconds:g}")


def make(
    config: JobConfig, cluster: Cluster, machine: Machine, programs: Programs, meeting: Meeting | None = None
) -> Plan:
    """The plan of one attempt. Every host makes the same plan from the same input.

    `machine` is the planning host. The plan assumes that the other hosts have as many CPUs and GPUs.
    """
    meeting = meeting or offline(config)
    nic = interface(config, machine)
    launch = config.launch
    pieces = starter(launch.engine.value)(_wanted(config, cluster, machine, programs, meeting))
    sagemaker = sagemaker_env.SageMakerEnvironment(config, machine, nic.value)
    contract = (*env.shared_contract(cluster, meeting, launch.restarts), framework_env.jax_coordinator(meeting))
    return Plan(
        format=FORMAT,
        engine=launch.engine,
        attempt=meeting.attempt,
        per_host=launch.per_host,
        nnodes=cluster.nnodes,
        world_size=cluster.world_size,
        argv=(*_measuring(config, programs.python, meeting.attempt), *config.entry.argv(programs.python)),
        cwd=config.entry.cwd,
        interface=nic,
        env=(
            *sagemaker.shared(),
            *simple_sagemaker_env.shared(config),
            *_checkpoint_folder(config),
            *_python_path(config),
            *env.of_engine(pieces.shared, config.environ),
        ),
        contract=contract if pieces.contract else (),
        starter_env=tuple(Variable(k, v, launch.engine.value) for k, v in pieces.environ.items()),
        keeps_contract=pieces.keeps_contract,
        limits=config.limits,
        compatibility=launch.compatibility,
        openmpi=machine.openmpi,
        tensorflow=framework_env.workers(config, cluster, meeting),
        ray=machine.ray,
        preparation=_preparation(config),
        hosts=tuple(_host(h, config, machine, sagemaker, pieces, nic) for h in cluster.hosts),
        is_default=launch.is_default,
        warning=_idle(config, cluster, machine),
    )


def _idle(config: JobConfig, cluster: Cluster, machine: Machine) -> str:
    """A warning where one rank per host, which nobody has asked for, leaves GPUs without a rank; else ""."""
    hosts, gpus = len(cluster.members), machine.gpus.value
    if not config.launch.is_default or gpus < 2 or not hosts:
        return ""
    change = "--per-gpu" if not config.request.from_job else f"hyperparameter {groups.PER_GPU}=true, or a distribution,"
    keep = "--per-host" if not config.request.from_job else f"{groups.PER_HOST}=true"
    return (
        f"{hosts} rank{'s'[: hosts != 1]}, one per host, on {hosts} of {hosts * gpus} GPUs: {change} starts {hosts * gpus}; "
        f"{keep} says that the program itself uses all GPUs of its host"
    )


def _checkpoint_folder(config: JobConfig) -> list[Variable]:
    """The name of the folder that SageMaker keeps, wherever the job runs; a Processing job has none."""
    if config.input.processing:
        return []
    return [Variable(settings.CHECKPOINT_DIR.name, str(config.paths.checkpoints), "folder of the checkpoints")]


CONTRACT = frozenset(
    (
        *("RANK", "LOCAL_RANK", "ROLE_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
        *("ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    )
)


OURS = ("RESTART_COUNT", "MAX_RESTARTS")  # the hub counts attempts, torchrun does not


def contract_names(plan: Plan, host: HostPlan, rank: RankPlan) -> list[str]:
    """The names of those variables of a rank that torchrun sets itself if it is the engine."""
    names = plan.environ(host, rank)
    theirs = [name for name in names if name.startswith("TORCHELASTIC_") and not name.endswith(OURS)]
    return [name for name in names if name in CONTRACT] + theirs
