"""The mpirun engine: Open MPI's mpirun runs on the leader; each host's supervisor starts the daemon there."""

from __future__ import annotations

from itertools import pairwise

from algorun.common.errors import UserError
from algorun.machine import openmpi
from algorun.machine.openmpi import MCA, OURS

from .base import Pieces, Wanted

# Options of mpirun that set hosts or numbers of ranks. The plan decides these, so a user's option is refused.
PLANNED = frozenset(
    (
        *("-n", "-np", "--n", "--np", "-c", "-npernode", "--npernode", "-N", "-H", "-host", "--host"),
        *("-hostfile", "--hostfile", "-machinefile", "--machinefile", "--default-hostfile", "--app"),
    )
)
# Our defaults, which a user's option replaces: Open MPI 5 refuses an option that is given twice.
DEFAULTS = {"--map-by": "slot", "--bind-to": "none"}


def pieces(wanted: Wanted) -> Pieces:
    """mpirun on the leader, with the user's own options.

    It starts our rank program for each rank, which gets its environment from its own host. On a host without Open MPI
    the plan assumes the version of our image. Raises UserError on an option that contradicts the plan.
    """
    found = wanted.openmpi
    major = openmpi.usable(found).major if found else openmpi.ASSUMED
    # A single host is called localhost: mpirun then starts no daemon, which saves 0.1 s.
    hosts = ",".join(f"{'localhost' if wanted.alone else host.name}:{host.slots}" for host in wanted.hosts)
    argv = [found.command if found else "mpirun", "-np", str(wanted.world_size), "--host", hosts]
    own = _own(wanted.options)
    given = {f"--{word.lstrip('-')}" for word in own if word.startswith("-")}
    for option, value in DEFAULTS.items():
        argv += [] if option in given else [option, value]
    argv += ["--leave-session-attached"]
    users = {openmpi.SYNONYMS.get(name, name) for word, name in pairwise(own) if word in MCA}
    for each in openmpi.parameters(major, wanted.interface, wanted.programs.rsh, simulated=wanted.simulated):
        if each.known_as not in users:  # mpirun refuses a parameter that is given twice
            argv += [each.option, each.name, each.value]
    # SageMaker's containers run as root, which Open MPI allows only if both variables are set.
    environ = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environ |= found.environ() if found else {}
    return Pieces({wanted.leader: (*argv, *own, *wanted.programs.rank)}, environ)


def _own(options: tuple[str, ...]) -> list[str]:
    """The user's options for mpirun. sagemaker-training's `--NCCL_DEBUG LEVEL` becomes `-x NCCL_DEBUG=LEVEL`."""
    words: list[str] = []
    waiting = iter(options)
    for word in waiting:
        name, equals, value = word.partition("=")
        if name in PLANNED or (name in OURS and words and words[-1] in MCA):
            raise UserError(
                "custom MPI options", f"{word!r} contradicts the plan", fix="set the processes per host instead",
                allowed="options of mpirun that set neither hosts nor numbers of ranks",
            )  # fmt: skip
        if name == "--NCCL_DEBUG":
            words += ["-x", f"NCCL_DEBUG={value if equals else next(waiting, 'INFO')}"]
        else:
            words.append(word)
    return words
