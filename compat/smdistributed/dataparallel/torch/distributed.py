"""smdistributed.dataparallel.torch.distributed: the library's first interface, on torch.distributed.

Source: the public API pages of sagemaker-python-sdk, "PyTorch API" of the distributed data parallel library, 1.0 to 1.3.
"""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist
from torch.distributed import (
    ReduceOp,
    all_gather,
    all_reduce,
    all_to_all_single,
    barrier,
    broadcast,
    destroy_process_group,
    get_rank,
    get_world_size,
    group,
    is_initialized,
    new_group,
)

from .torch_smddp import NAME

__all__ = [
    "ReduceOp",
    "all_gather",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "destroy_process_group",
    "get_local_rank",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "is_available",
    "is_initialized",
    "new_group",
]


def is_available() -> bool:
    """True where the process group can be made."""
    return dist.is_available()


def init_process_group(*args: Any, **kwargs: Any) -> None:
    """Starts the default process group on the backend `smddp`; arguments as those of torch.distributed."""
    if not args and "backend" not in kwargs:
        kwargs["backend"] = NAME
    if not dist.is_initialized():
        dist.init_process_group(*args, **kwargs)


def get_local_rank() -> int:
    """This process's index on its host."""
    return int(os.environ.get("LOCAL_RANK", "0"))
