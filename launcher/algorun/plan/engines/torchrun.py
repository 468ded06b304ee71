"""The torchrun engine: a torchrun on each host, with a static rendezvous on the leader."""

from __future__ import annotations

from .base import Pieces, Wanted


def pieces(wanted: Wanted) -> Pieces:
    """torchrun on every host. It starts our rank program for each rank, and never restarts: the hub decides that.

    Each attempt has new torchrun processes and a new port, so that no rank reads addresses of an earlier attempt from
    the store (pytorch issue 135712).
    """
    # With one rank per host a script may set MASTER_PORT itself. Then rank 0 must listen on that port. It would not with
    # torchrun's own variables, because torchrun serves the store itself. So torchrun gets another port, and the ranks
    # create their own store.
    port = wanted.engine_port if wanted.per_host else wanted.master_port
    starters = {}
    for host in wanted.hosts:
        starters[host.name] = (
            wanted.programs.python,
            "-I",
            "-u",
            "-m",
            "torch.distributed.run",
            f"--nnodes={len(wanted.hosts)}",
            f"--node-rank={host.group_rank}",
            f"--nproc-per-node={host.slots}",
            "--rdzv-backend=static",
            f"--master-addr={wanted.master_addr}",
            f"--master-port={port}",
            "--max-restarts=0",
            "--no-python",
            "--",
            *wanted.programs.rank,
        )
    return Pieces(starters, {}, keeps_contract=not wanted.per_host)
