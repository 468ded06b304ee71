"""Short time limits of collectives, for programs of tests that wait longer than one may take."""

from __future__ import annotations

import datetime

import torch.distributed as dist

from algorun_train.ranks import join

START = datetime.timedelta(minutes=1)  # between two ranks of a busy machine until both have loaded torch


def meet(seconds: float) -> None:
    """Makes torch's process group, and from then on a collective may take only so long. Call it on all ranks.

    The ranks first wait for each other for as long as it takes: a limit that holds from the start would end those that
    load torch faster than others.
    """
    store, rank, size = next(dist.rendezvous("env://", timeout=START))
    store.set(f"here {rank}", "")
    store.wait([f"here {other}" for other in range(size)], START)
    join.COLLECTIVE_TIMEOUT = datetime.timedelta(seconds=seconds)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=join.COLLECTIVE_TIMEOUT)
