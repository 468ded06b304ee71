"""Variables that other frameworks than torch read: JAX, TensorFlow. Pure.

They stand beside torchrun's contract under every engine, and no variable of another launcher is imitated: a rank under
the native engine has no OMPI_*.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from algorun.common.errors import UserError
from algorun.common.fast_dataclasses import dataclass
from algorun.job.config import JobConfig
from algorun.job.hyperparameters import LONGEST
from algorun.job.values import Sourced

from .cluster import Cluster, Meeting
from .rank_env import Variable

TF_CONFIG = "TF_CONFIG"
ASSUMED_TF_PORT = 8890  # of AWS's toolkit, for plans made offline; a job uses free ports

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


@dataclass(frozen=True, slots=True)
class Workers:
    """TensorFlow's cluster: every rank is a worker, and rank 0 is TensorFlow's chief."""

    addresses: tuple[str, ...]  # of each rank
    source: str

    def tf_config(self, rank: int) -> str:
        """TF_CONFIG of a rank, in the form of AWS's toolkit for TensorFlow.

        sagemaker-tensorflow-training 20.5.0, training.py: one worker per host, port 8890, and the environment "cloud".
        """
        task = {"index": rank, "type": "worker"}
        return json.dumps({"cluster": {"worker": self.addresses}, "environment": "cloud", "task": task})


def workers(config: JobConfig, cluster: Cluster, meeting: Meeting) -> Workers | None:
    """The ranks as TensorFlow's workers, if the job asks for TF_CONFIG. Raises UserError if there are too many."""
    source = config.launch.tf_config
    if not source:
        return None
    alone, addresses = cluster.nnodes == 1, config.control.addresses
    found = []
    for host in cluster.members:
        # A single host needs no name, and its name may not resolve.
        name = addresses.get(host.name, "127.0.0.1" if alone else host.name)
        first = meeting.tf_ports.get(host.name, ASSUMED_TF_PORT)
        found += [address(name, first + slot) for slot in range(host.slots.value)]
    made = Workers(tuple(found), source)
    size = len(f"{TF_CONFIG}={made.tf_config(len(found))}")
    if size >= LONGEST:
        raise UserError(
            TF_CONFIG,
            f"{len(found)} workers make {size} bytes",
            allowed=f"less than {LONGEST} bytes: Linux starts no process with a longer variable",
            fix="start one rank per host",
        )
    return made
