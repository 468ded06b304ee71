"""The torchrun engine: one torchrun per host with a static rendezvous on the leader."""

from __future__ import annotations

from algorun.plan.cluster import Cluster

from .base import Pieces, Programs


def pieces(cluster: Cluster, programs: Programs, master_addr: str, master_port: int, *, keeps_contract: bool) -> Pieces:
    """torchrun on every host. Restarts are the hub's (max-restarts 0), and its ranks are our rank programs.

    Each attempt is a new torchrun with a new port, so that no rank can read addresses of an earlier attempt from a
    shared store (pytorch issue 135712). `keeps_contract`: ranks meet in torchrun's own store, at this port.
    """
    starters = {}
    for host in cluster.members:
        starters[host.name] = (
            programs.python,
            "-I",
            "-u",
            "-m",
            "torch.distributed.run",
            f"--nnodes={len(cluster.members)}",
            f"--node-rank={host.group_rank}",
            f"--nproc-per-node={host.slots.value}",
            "--rdzv-backend=static",
            f"--master-addr={master_addr}",
            f"--master-port={master_port}",
            "--max-restarts=0",
            "--no-python",
            "--",
            *programs.rank,
        )
    return Pieces(starters, {}, keeps_contract=keeps_contract)
