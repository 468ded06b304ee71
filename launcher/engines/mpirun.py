"""The mpirun engine: Open MPI's mpirun on the leader, its daemons started by each host's own supervisor.

The one place that knows Open MPI 4.1's parameter names (Open MPI 5 renames them to prte and pmix).
"""

from __future__ import annotations

import shlex
from itertools import pairwise

from ..cluster import Cluster
from ..errors import UserError
from .base import Pieces, Programs

# Options of mpirun that say where how many ranks run: the plan's, not the user's.
PLANNED = frozenset(
    (
        *("-n", "-np", "--n", "--np", "-c", "-npernode", "--npernode", "-N", "-H", "-host", "--host"),
        *("-hostfile", "--hostfile", "-machinefile", "--machinefile", "--default-hostfile", "--app"),
    )
)

# How mpirun's options spell an MCA parameter: this word, its name, its value.
MCA = frozenset(("-mca", "--mca", "-gmca", "--gmca"))
# Parameters that start the job: ours in every case.
OURS = frozenset(("plm", "plm_rsh_agent", "plm_rsh_no_tree_spawn"))


def parameters(interface: str, rsh: tuple[str, ...], *, simulated: bool) -> dict[str, str]:
    """MCA parameters of a job."""
    return {
        "plm_rsh_agent": shlex.join(rsh),  # no sshd, no keys
        "plm_rsh_no_tree_spawn": "1",  # only the leader asks for daemons
        "orte_keep_fqdn_hostnames": "1",  # algo-1.x and algo-1.y are two hosts
        "rtc": "^hwloc",  # nothing is bound, and writing the topology for bound ranks has crashed orted
        "pml": "ob1",  # libfabric's probe of a missing device costs seconds and fails in containers
        # vader names its shared memory by machine, job and local rank: simulated hosts on one machine would share it,
        # and crash or lose messages.
        "btl": "tcp,self" if simulated else "tcp,self,vader",
        "btl_tcp_if_include": interface,  # a wrong interface hangs for ever
        "oob_tcp_if_include": interface,
        "btl_vader_single_copy_mechanism": "none",  # the default seccomp profile of containers forbids it
        "mpi_yield_when_idle": "1",  # more ranks than cores: 28 steps against 11
        "oob_tcp_keepalive_time": "5",  # a cut network is noticed after seconds, not after 489 s
        "oob_tcp_keepalive_intvl": "2",
        "oob_tcp_keepalive_probes": "3",
    }


def pieces(
    cluster: Cluster, programs: Programs, interface: str, options: tuple[str, ...] = (), *, simulated: bool
) -> Pieces:
    """mpirun on the leader, with the user's own `options`; `simulated` for hosts that are one machine.

    Each rank is our rank program, which gets its environment from its own host. Raises UserError on an option that
    contradicts the plan.
    """
    # A single host is mpirun's own, whatever the platform calls it: no daemon has to be started, 0.1 s.
    alone = cluster.nnodes == 1
    hosts = ",".join(f"{'localhost' if alone else host.name}:{host.slots.value}" for host in cluster.members)
    argv = ["mpirun", "-np", str(cluster.world_size), "--host", hosts, "--map-by", "slot", "--bind-to", "none"]
    argv += ["--leave-session-attached"]
    own = _own(options)
    users = {name for word, name in pairwise(own) if word in MCA}
    for name, value in parameters(interface, programs.rsh, simulated=simulated).items():
        if name not in users:  # mpirun refuses a parameter that is there twice
            argv += ["--mca", name, value]
    # Root is what a SageMaker container is; Open MPI wants to be told twice.
    environ = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return Pieces({cluster.leader.name: (*argv, *own, *programs.rank)}, environ)


def _own(options: tuple[str, ...]) -> list[str]:
    """The user's options. `--NCCL_DEBUG LEVEL` is sagemaker-training's own spelling of `-x NCCL_DEBUG=LEVEL`."""
    words: list[str] = []
    waiting = iter(options)
    for word in waiting:
        name, equals, value = word.partition("=")
        if name in PLANNED or (name in OURS and words and words[-1] in MCA):
            raise UserError(
                "custom MPI options", f"{word!r} contradicts the plan", allowed="options other than hosts and counts",
                fix="set the processes per host instead",
            )  # fmt: skip
        if name == "--NCCL_DEBUG":
            words += ["-x", f"NCCL_DEBUG={value if equals else next(waiting, 'INFO')}"]
        else:
            words.append(word)
    return words
