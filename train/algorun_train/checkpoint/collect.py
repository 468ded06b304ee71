"""Collects a model's tensors on rank 0 if its stages are on several ranks."""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from algorun_train.ranks.communicator import Communicator


def on_leader(comm: Communicator, sources: Sequence[int], state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of the ranks `sources`, on rank 0's CPU; {} on all other ranks. Call it on all ranks.

    Tensors travel one by one, so a source rank needs memory for its own stages and one tensor only. If several ranks
    hold a name, the first of them sends it.
    """
    mine = state if comm.rank in sources else {}
    rows = comm.gather([(name, tensor.dtype, tensor.shape) for name, tensor in mine.items()])
    whole: dict[str, torch.Tensor] = {}
    sent = set()
    for source in sources:
        for name, dtype, shape in rows[source]:
            if name in sent:
                continue
            sent.add(name)
            tensor = mine[name].detach().cpu().contiguous() if source == comm.rank else None
            if comm.is_leader:
                whole[name] = torch.empty(shape, dtype=dtype) if tensor is None else tensor
            if source == 0:
                continue
            if comm.is_leader:
                dist.recv(_bytes(whole[name]), src=source)
            elif tensor is not None:
                dist.send(_bytes(tensor), dst=0)
    return whole


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)
