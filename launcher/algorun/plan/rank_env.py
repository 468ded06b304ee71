"""The environment of a rank, each variable with its source: torchrun's variables, and defaults for libraries. Pure.

torchrun's variables (RANK, LOCAL_RANK, WORLD_SIZE, .., MASTER_ADDR, MASTER_PORT: the contract) are the same under every
engine. SageMaker's variables, SM_*, are in sagemaker_env.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from algorun.common.fast_dataclasses import dataclass
from algorun.job.values import Sourced
from algorun.machine import cuda_driver
from algorun.machine.probe import Machine

from .cluster import Cluster, Host, Meeting


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable and the source of its value."""

    name: str
    value: str
    source: str


def shared_contract(cluster: Cluster, meeting: Meeting, restarts: int) -> list[Variable]:
    """The part of torchrun's contract that is the same for all ranks."""
    ranks = f"{cluster.nnodes} hosts' slots"
    torchrun = "torchrun's contract"
    master, port = meeting.master_addr, meeting.master_port
    return [
        Variable("WORLD_SIZE", str(cluster.world_size), ranks),
        Variable("GROUP_WORLD_SIZE", str(len(cluster.members)), ranks),
        Variable("ROLE_NAME", "default", torchrun),
        Variable("ROLE_WORLD_SIZE", str(cluster.world_size), ranks),
        Variable("MASTER_ADDR", master.value, master.source),
        Variable("MASTER_PORT", str(port.value), port.source),
        Variable("SM_MASTER_ADDR", master.value, master.source),
        Variable("SM_MASTER_PORT", str(port.value), port.source),
        Variable("TORCHELASTIC_RESTART_COUNT", str(meeting.attempt), "attempt"),
        Variable("TORCHELASTIC_MAX_RESTARTS", str(restarts), "restarts"),
        Variable("TORCHELASTIC_RUN_ID", "algorun", torchrun),
        Variable("TORCHELASTIC_USE_AGENT_STORE", "False", "no agent store"),
    ]


def host_contract(host: Host) -> list[Variable]:
    """The part of torchrun's contract that is the same for all ranks of a host."""
    if not host.joined:
        return []
    return [
        Variable("LOCAL_WORLD_SIZE", str(host.slots.value), host.slots.source),
        Variable("GROUP_RANK", str(host.group_rank), "order of hosts"),
    ]


def data_parallel(local_rank: int) -> Variable:
    """What AWS's smddprun tells a rank of a job for smdistributed.dataparallel; transformers' Trainer reads it there."""
    return Variable("SMDATAPARALLEL_LOCAL_RANK", str(local_rank), "smddprun's name")


def rank_contract(rank: int, local_rank: int) -> list[Variable]:
    """The part of torchrun's contract that differs from rank to rank."""
    return [
        Variable("RANK", str(rank), "order of hosts and slots"),
        Variable("LOCAL_RANK", str(local_rank), "slot"),
        Variable("ROLE_RANK", str(rank), "order of hosts and slots"),
    ]


KEPT = "set in the environment: kept"
RECORDED_CALLS = "2000"  # of a rank, in all groups: enough for the calls that a GPU's queue holds
SPINS = "1000"
OURS = frozenset({"RAY_ADDRESS"})  # of the engine's variables: without them it is another engine


def of_engine(shared: Mapping[str, tuple[str, str]], environ: Mapping[str, str]) -> list[Variable]:
    """What an engine gives to its processes and to every rank. A value that the user has set is kept."""
    return [
        Variable(name, environ[name], KEPT) if environ.get(name) and name not in OURS else Variable(name, *value)
        for name, value in shared.items()
    ]


def defaults(
    interface: Sourced[str], machine: Machine, slots: int | None, environ: Mapping[str, str]
) -> list[Variable]:
    """Network and thread settings. A value that the user has set is kept; its source says so.

    `slots` is None if the engine divides the CPUs itself.
    """
    defaults: Iterable[Variable] = (
        Variable("NCCL_SOCKET_IFNAME", interface.value, interface.source),
        Variable("GLOO_SOCKET_IFNAME", interface.value, interface.source),
        Variable("TP_SOCKET_IFNAME", interface.value, interface.source),
        *(() if slots is None else _threads(machine.cpus.value, slots, environ)),
        Variable("PYTHONUNBUFFERED", "1", "printed lines appear at once"),
    )
    if machine.efa_devices:  # AWS's launchers decide by the name of the instance type instead
        source = f"EFA device {machine.efa_devices[0]}"
        defaults = (*defaults, Variable("FI_PROVIDER", "efa", source), Variable("RDMAV_FORK_SAFE", "1", source))
        if plugin := machine.nccl_plugin.left_aside:
            defaults = (*defaults, Variable("NCCL_NET_PLUGIN", plugin, "NCCL finds none by itself"))
    # torch 2.10 records nothing by default; then a hang is judged by stacks alone. The older name holds too.
    if machine.gpus.value and not environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE"):
        defaults = (*defaults, Variable("TORCH_FR_BUFFER_SIZE", RECORDED_CALLS, "torch's flight recorder"))
    own = [Variable(w.name, environ[w.name], KEPT) if environ.get(w.name) else w for w in defaults]
    return own + _driver(machine, environ)


def _threads(cpus: int, slots: int, environ: Mapping[str, str]) -> tuple[Variable, ...]:
    threads = Variable("OMP_NUM_THREADS", str(max(1, cpus // slots)), f"{cpus} CPUs / {slots} slots")
    # A thread that is done waits for the others by spinning, 300,000 times by default: for milliseconds, on a core that one of
    # the others needs as soon as anything else runs here (docs/benchmarks.md, "Threads of a rank").
    if (environ.get(threads.name) or threads.value) == "1" or environ.get("OMP_WAIT_POLICY"):
        return (threads,)
    return (threads, Variable("GOMP_SPINCOUNT", SPINS, "threads that wait leave the core soon"))


def _driver(machine: Machine, environ: Mapping[str, str]) -> list[Variable]:
    """LD_LIBRARY_PATH with the image's own libcuda, if the kernel's driver is too old for torch."""
    found = machine.nvidia
    path = cuda_driver.with_compat(found, machine.torch_cuda, environ.get("LD_LIBRARY_PATH", ""))
    if not path or machine.visible.hidden:
        return []
    return [
        Variable("LD_LIBRARY_PATH", path, f"driver {found.driver} is older than the image's libcuda {found.compat}")
    ]
