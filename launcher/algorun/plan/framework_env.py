"""Variables that other frameworks than torch read: JAX. Pure.

They stand beside torchrun's contract under every engine, and no variable of another launcher is imitated: a rank under
the native engine has no OMPI_*.
"""

from __future__ import annotations

from collections.abc import Mapping

from algorun.job.values import Sourced

from .cluster import Meeting
from .rank_env import Variable

JAX_LOCAL_DEVICE_IDS = "JAX_LOCAL_DEVICE_IDS"


def address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def jax_coordinator(meeting: Meeting) -> Variable:
    """Where rank 0 serves JAX's coordinator, on a port of its own.

    `jax.distributed.initialize` reads this variable. It reads none for the number of processes and the process's id:
    scripts pass WORLD_SIZE and RANK (jax 0.10.2, jax/_src/distributed.py).
    """
    where = address(meeting.master_addr.value, meeting.jax_port.value)
    return Variable("JAX_COORDINATOR_ADDRESS", where, meeting.jax_port.source)


def jax_devices(local_rank: int, slots: int, gpus: Sourced[int], environ: Mapping[str, str]) -> list[Variable]:
    """The rank's own GPU for JAX, if each of several ranks has one.

    Without it every JAX process takes memory on all GPUs of its host. JAX does the same under Slurm and Open MPI 4: one
    GPU for each process. A value that the user has set is kept.
    """
    if not 1 < slots <= gpus.value or environ.get(JAX_LOCAL_DEVICE_IDS):
        return []
    return [Variable(JAX_LOCAL_DEVICE_IDS, str(local_rank), "slot")]
