"""The ranks of a TensorFlow script, by whatever their launcher lets them talk."""

from __future__ import annotations

import os

from . import mpi_ranks
from .rank_group import RankGroup


def join(call: str) -> RankGroup:
    """All ranks of the job: by MPI where mpirun has started them, else by Gloo; one process alone by neither. On all of them.

    Each call gives a group of its own, whose messages do not meet those of others. `call` is the script's, for errors. UserError
    for variables of launchers that contradict each other.
    """
    if mpi_ranks.are_started() or int(os.environ.get("WORLD_SIZE") or 1) == 1:
        return mpi_ranks.join(call)
    from . import gloo_ranks  # here, because it loads torch beside TensorFlow

    return gloo_ranks.join()
