"""Which rank this is, and whom it works with: the "MPI basics" of the library's interface.

A model replica lies on the ranks of a pipeline, so the model parallel (mp) group is the pipeline parallel (pp) one.
"""

from __future__ import annotations

from .session import job


def rank() -> int:
    """This process's rank in the job."""
    return job().world.rank


def size() -> int:
    """The number of processes in the job."""
    return job().world.size


def local_rank() -> int:
    """This process's rank on its host. The first call must come on all ranks."""
    return job().world.on_host()[0]


def local_size() -> int:
    """The number of processes on this host. The first call must come on all ranks."""
    return job().world.on_host()[1]


def mp_rank() -> int:
    """This process's rank in its pipeline: the number of its partition."""
    return job().pipeline.rank


def mp_size() -> int:
    """The number of processes in a pipeline: that of the partitions."""
    return job().pipeline.size


def dp_rank() -> int:
    """The number of this process's replica."""
    return job().layout.grid.place(rank())[0]


def dp_size() -> int:
    """The number of replicas."""
    return job().layout.grid.dp


pp_rank, pp_size = mp_rank, mp_size


def barrier() -> None:
    """Waits until all ranks of the job have come here. UserError if one of them is in another call."""
    job().world.together("smp.barrier")


def mp_barrier() -> None:
    """Waits until all ranks of the pipeline have come here. UserError if one of them is in another call."""
    job().pipeline.together("smp.mp_barrier")


pp_barrier = mp_barrier
