"""The torchrun engine: one torchrun per host with a static rendezvous on the leader."""

from __future__ import annotations

from .base import Pieces, Wanted


def pieces(wanted: Wanted) -> Pieces:
    """torchrun on every host. Restarts are the hub's (max-restarts 0), and its ranks are our rank programs.

    Each attempt is a new torchrun with a new port, so that no rank can read addresses of an earlier attempt from a
    shared store (pytorch issue 135712).
    """
    # One process per host: scripts that count hosts may set MASTER_PORT themselves. With torchrun's own contract no rank
    # would then listen there, because torchrun offers its rendezvous as the ranks' store. So the rendezvous takes another
    # port, and the ranks make a store of their own.
    meeting = wanted.meeting
    port = meeting.engine_port if wanted.per_host else meeting.master_port
    starters = {}
    for host in wanted.cluster.members:
        starters[host.name] = (
            wanted.programs.python,
            "-I",
            "-u",
            "-m",
            "torch.distributed.run",
            f"--nnodes={len(wanted.cluster.members)}",
            f"--node-rank={host.group_rank}",
            f"--nproc-per-node={host.slots.value}",
            "--rdzv-backend=static",
            f"--master-addr={meeting.master_addr.value}",
            f"--master-port={port.value}",
            "--max-restarts=0",
            "--no-python",
            "--",
            *wanted.programs.rank,
        )
    return Pieces(starters, {}, keeps_contract=not wanted.per_host)
