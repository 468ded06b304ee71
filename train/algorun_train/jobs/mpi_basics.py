"""Three exercises with MPI whose results are checked: `mpirun -np 6 python -m algorun_train.jobs.mpi_basics`.

1. Point to point: a token goes round a ring of all ranks. 2. Broadcast: rank 0 sends a list of numbers to all. 3. Gather,
average, broadcast: one step of synchronous data parallel training by hand. Needs mpi4py; any number of ranks.
"""

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from algorun_train.common.errors import UserError, guarded
from algorun_train.loop.summary import write_summary
from algorun_train.options import folders, option_parser
from algorun_train.options.option_rules import OnResume, option

if TYPE_CHECKING:
    from mpi4py import MPI

# Set for every process by the launchers of Open MPI, of MPICH and Slurm (PMI), and of PMIx.
STARTED_BY_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")


class WrongResult(Exception):
    """The result of an exercise is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiBasicsOptions:
    """The options of `mpi-basics`."""

    size: int = option(1000, "numbers per rank and message", OnResume.FREE, at_least=1)


def main(argv: list[str]) -> int:
    """Runs all exercises on every rank; rank 0 prints their results and writes the summary. Raises UserError."""
    if option_parser.answer_help(MpiBasicsOptions, "algorun_train.jobs.mpi_basics", argv):
        return 0
    config = option_parser.read_options(MpiBasicsOptions, argv)
    started_by_mpi(os.environ)
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    try:
        results = [(exercise.__name__, exercise(world, config.size)) for exercise in EXERCISES]
        if world.rank == 0:
            for name, text in results:
                print(f"check: {name} ok: {text}", flush=True)
            folder = folders.output_folder(os.environ, Path.is_dir)
            folder.mkdir(parents=True, exist_ok=True)
            write_summary(folder, {"checks": len(results)})
        world.Barrier()
    except Exception:
        # Without an abort the other ranks would wait for this one for ever.
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        world.Abort(1)
    return 0


def started_by_mpi(environ: Mapping[str, str]) -> None:
    """Raises UserError if no MPI launcher started this process: each rank would be alone in its world."""
    if not any(name in environ for name in STARTED_BY_MPI):
        raise UserError(
            "mpi-basics was not started by mpirun, so its ranks cannot find each other; allowed: the mpirun engine; "
            "fix: algorun run --engine mpirun mpi-basics, or mpirun -np 4 python -m algorun_train.jobs.mpi_basics"
        )


def expect(what: str, got: object, wanted: object) -> None:
    """Raises WrongResult if `got` is not `wanted`."""
    if got != wanted:
        raise WrongResult(f"{what}: got {got!r}, expected {wanted!r}")


def point_to_point(world: "MPI.Comm", size: int) -> str:
    """A token passes every rank once; each adds its number to it."""
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    if world.rank == 0:
        world.send(0, dest=after, tag=1)
        token = world.recv(source=before, tag=1)
        expect("the token after one round", token, sum(range(world.size)))
        return f"a token went round {world.size} ranks and came back as {token}"
    token = world.recv(source=before, tag=1)
    expect(f"the token at rank {world.rank}", token, sum(range(world.rank)))
    world.send(token + world.rank, dest=after, tag=1)
    return ""


def broadcast(world: "MPI.Comm", size: int) -> str:
    """Rank 0's numbers reach every rank unchanged, and all ranks confirm it."""
    numbers = world.bcast([3 * i + 1 for i in range(size)] if world.rank == 0 else None, root=0)
    expect(f"the broadcast numbers at rank {world.rank}", numbers, [3 * i + 1 for i in range(size)])
    return f"{size} numbers are equal on {world.allreduce(1)} ranks"


def gather_average_broadcast(world: "MPI.Comm", size: int) -> str:
    """Every rank sends its gradient to rank 0, which sends back the mean."""
    gradient = [float(world.rank + i) for i in range(size)]
    gathered = world.gather(gradient, root=0)
    mean = [sum(column) / world.size for column in zip(*gathered, strict=True)] if gathered else None
    mean = world.bcast(mean, root=0)
    middle = (world.size - 1) / 2
    # Floating point adds whole numbers and halves exactly, so the values must be equal.
    expect(f"the mean gradient at rank {world.rank}", mean, [middle + i for i in range(size)])
    return f"the mean of {world.size} gradients starts with {mean[0]}"


EXERCISES: tuple[Callable[["MPI.Comm", int], str], ...] = (point_to_point, broadcast, gather_average_broadcast)


if __name__ == "__main__":
    sys.exit(guarded(main))
