"""A torch.distributed backend under a name of the caller's: NCCL where there are GPUs, Gloo elsewhere."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from algorun_train.ranks import devices, roll_call

Options = Any  # torch's DistributedBackendOptions and its groups' own options: without public names or types


def register(name: str) -> None:
    """Makes the backend `name` known to torch.distributed; once is enough, more often does nothing.

    The first group that is made over it raises UserError, equal on all ranks, if some hosts have usable GPUs and others
    have none.
    """
    if name in dist.Backend.backend_list:
        return
    on_gpu = torch.cuda.is_available() and dist.is_nccl_available()
    device, make = ("cuda", _nccl) if on_gpu else ("cpu", _gloo)
    dist.Backend.register_backend(name, make, extended_api=True, devices=[device])


def _call_roll(options: Options, device: str) -> None:
    if dist.is_initialized():  # not for the first group
        return
    _, refused = devices.count(os.environ)
    place = roll_call.RankAnswer(options.group_rank, roll_call.host_name(), device, error=refused)
    store = options.store
    while isinstance(store, dist.PrefixStore):  # torch has a part of it for each type of device
        store = store.underlying_store
    roll_call.agree(store, options.group_size, place)


def _nccl(options: Options, asked: Options | None) -> dist.ProcessGroupNCCL:
    """torch's own NCCL group (extended creator: `options` is torch's DistributedBackendOptions)."""
    _call_roll(options, "cuda")
    chosen = asked or dist.ProcessGroupNCCL.Options()
    chosen._timeout = options.timeout
    chosen.global_ranks_in_group = options.global_ranks_in_group
    return dist.ProcessGroupNCCL(options.store, options.group_rank, options.group_size, chosen)


def _gloo(options: Options, asked: Options | None) -> dist.ProcessGroupGloo:
    """torch's own Gloo group."""
    _call_roll(options, "cpu")
    return dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, timeout=options.timeout)
