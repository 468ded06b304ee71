"""smdistributed.dataparallel.torch.distributed: the library's first interface, on torch.distributed.

Source: the public API pages of sagemaker-python-sdk, "PyTorch API" of the distributed data parallel library, 1.0 to 1.8.
Signatures and defaults are those documented there; what they do is torch.distributed's. So `group` may be any group that
torch has made, where the library knew `group.WORLD` only.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed import (
    all_gather,
    barrier,
    destroy_process_group,
    get_rank,
    get_world_size,
    group,
    is_initialized,
    new_group,
)

from algorun_smdistributed.script_types import Given, Result
from algorun_train.common.errors import UserError

from .torch_smddp import NAME

__all__ = [
    "ReduceOp", "all_gather", "all_reduce", "all_to_all_single", "barrier", "broadcast", "destroy_process_group",
    "get_local_rank", "get_rank", "get_world_size", "group", "init_process_group", "is_available", "is_initialized",
    "new_group",
]  # fmt: skip

# What a launcher sets for the ranks of a job; torch's own rendezvous reads the same.
JOB = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class ReduceOp(dist.ReduceOp):
    """torch's reduction operations, the average under the library's name as well: AVERAGE, SUM, MIN, MAX."""

    AVERAGE = dist.ReduceOp.AVG


def is_available() -> bool:
    """True in a job with ranks; False in a script that somebody started alone."""
    return dist.is_available() and (dist.is_initialized() or all(name in os.environ for name in JOB))


def init_process_group(*args: Given, **kwargs: Given) -> None:
    """Starts the default process group on the backend `smddp`; arguments as those of torch.distributed.

    Nothing happens where it runs already. `group` is taken for the sake of the documentation and means all ranks.
    """
    chosen = kwargs.pop("group", None)
    if chosen is not None and chosen is not dist.group.WORLD:
        raise UserError(
            "init_process_group: group; allowed: group.WORLD; fix: make the group by new_group() afterwards"
        )
    if not args and "backend" not in kwargs:
        kwargs["backend"] = NAME
    if not dist.is_initialized():
        dist.init_process_group(*args, **kwargs)


def get_local_rank() -> int:
    """This process's index on its host. UserError where several ranks run and the launcher has not said."""
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    if dist.is_initialized() and dist.get_world_size() > 1:
        raise UserError(
            "get_local_rank: LOCAL_RANK is not set; allowed: a number; fix: start the ranks by algorun or torchrun"
        )
    return 0


def all_reduce(
    tensor: torch.Tensor, op: Given = ReduceOp.SUM, group: dist.ProcessGroup | None = None, async_op: bool = False
) -> Result:
    """Reduces `tensor` in place over all ranks; `op` None is SUM. A work handle with `async_op`, else None.

    AVERAGE on the CPU is a sum of parts that were divided before, as in torch's DistributedDataParallel: not every
    version of Gloo knows the operation. UserError for an average of integers there.
    """
    op = ReduceOp.SUM if op is None else op
    if op == ReduceOp.AVERAGE and tensor.device.type == "cpu":
        if not (tensor.is_floating_point() or tensor.is_complex()):
            raise UserError(
                f"all_reduce: AVERAGE of {tensor.dtype} on the CPU; allowed: floating point; "
                "fix: reduce with SUM and divide by get_world_size()"
            )
        tensor.div_(dist.get_world_size(group))
        op = ReduceOp.SUM
    return dist.all_reduce(tensor, op, group, async_op)


def broadcast(
    tensor: torch.Tensor, src: int = 0, group: dist.ProcessGroup | None = None, async_op: bool = False
) -> Result:
    """Copies `tensor` of rank `src` into that of every other rank. A work handle with `async_op`, else None."""
    return dist.broadcast(tensor, src, group, async_op)


def all_to_all_single(
    output_t: torch.Tensor,
    input_t: torch.Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Result:
    """Part i of `input_t` goes to rank i; the parts that arrive, in the order of ranks, are `output_t`.

    Sizes are counted along the first axis; without them all parts are equal. A work handle with `async_op`, else None.
    """
    return dist.all_to_all_single(output_t, input_t, output_split_sizes, input_split_sizes, group, async_op)
