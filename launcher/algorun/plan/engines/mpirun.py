"""The mpirun engine: Open MPI's mpirun on the leader, its daemons started by each host's own supervisor."""

from __future__ import annotations

from itertools import pairwise

from algorun.errors import UserError
from algorun.machine import openmpi
from algorun.machine.openmpi import MCA, OURS

from .base import Pieces, Wanted

# Options of mpirun that say where how many ranks run: the plan's, not the user's.
PLANNED = frozenset(
    (
        *("-n", "-np", "--n", "--np", "-c", "-npernode", "--npernode", "-N", "-H", "-host", "--host"),
        *("-hostfile", "--hostfile", "-machinefile", "--machinefile", "--default-hostfile", "--app"),
    )
)
# Options of ours in whose place the user's go: Open MPI 5 refuses an option that is there twice.
DEFAULTS = {"--map-by": "slot", "--bind-to": "none"}


def pieces(wanted: Wanted) -> Pieces:
    """mpirun on the leader, with the user's own options.

    Each rank is our rank program, which gets its environment from its own host. Where this host has no Open MPI, the plan
    is that of our image. Raises UserError on an option that contradicts the plan.
    """
    cluster, found = wanted.cluster, wanted.openmpi
    major = openmpi.usable(found).major if found else openmpi.ASSUMED
    # A single host is mpirun's own, whatever the platform calls it: no daemon has to be started, 0.1 s.
    alone = cluster.nnodes == 1
    hosts = ",".join(f"{'localhost' if alone else host.name}:{host.slots.value}" for host in cluster.members)
    argv = [found.command if found else "mpirun", "-np", str(cluster.world_size), "--host", hosts]
    own = _own(wanted.options)
    given = {f"--{word.lstrip('-')}" for word in own if word.startswith("-")}
    for option, value in DEFAULTS.items():
        argv += [] if option in given else [option, value]
    argv += ["--leave-session-attached"]
    users = {openmpi.SYNONYMS.get(name, name) for word, name in pairwise(own) if word in MCA}
    for each in openmpi.parameters(major, wanted.interface, wanted.programs.rsh, simulated=wanted.simulated):
        if each.known_as not in users:  # mpirun refuses a parameter that is there twice
            argv += [each.option, each.name, each.value]
    # Root is what a SageMaker container is; Open MPI wants to be told twice.
    environ = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environ |= found.environ() if found else {}
    return Pieces({cluster.leader.name: (*argv, *own, *wanted.programs.rank)}, environ)


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
