"""Refuses to save a state with values that are not finite: a job that resumed from it could only go on with NaN."""

from collections.abc import Iterator, Sequence

import torch

from algorun_train.common.errors import TrainingError
from algorun_train.ranks.communicator import Communicator

from .shards import Save

FIX = "fix: a smaller --lr, --clip-norm 1, longer --warmup-epochs, or --precision fp32"


def refuse_broken(
    comm: Communicator,
    step: int,
    modules: Sequence[torch.nn.Module],
    optimizer: torch.optim.Optimizer,
    newest: Save | None,
) -> None:
    """Raises TrainingError, the same on all ranks, if a weight or the optimizer's state on any rank is not finite.

    Call it on all ranks before a checkpoint of `step` is saved. `newest` is the one that the job would resume from. It reads
    every value once, and waits for the device once.
    """
    found = comm.gather(first_broken(modules, optimizer))
    rank = next((rank for rank, name in enumerate(found) if name), None)
    if rank is None:
        return
    kept = f"the newest checkpoint is {newest.folder}" if newest is not None else "there is no checkpoint"
    raise TrainingError(
        f"after step {step} {found[rank]} on rank {rank} is not finite, so no checkpoint is written; {kept}; {FIX}"
    )


def first_broken(modules: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer) -> str:
    """The name of the first tensor of this rank that is not finite; "" where all are.

    A buffer may hold infinity, as masks do, and so may a weight that is not trained; neither may hold NaN.
    """
    names, flags = [], []
    for name, tensor, strict in _tensors(modules, optimizer):
        local = getattr(tensor, "_local_tensor", tensor).detach()
        if local.numel() and local.is_floating_point() and local.itemsize > 1:
            low, high = torch.aminmax(local)  # NaN if any value is; torch.isfinite would need a copy
            names.append(name)
            flags.append((low.isfinite() & high.isfinite() if strict else ~low.isnan()).to("cpu", non_blocking=True))
    if any(tensor.device.type == "cuda" for module in modules for tensor in module.parameters()):
        torch.cuda.synchronize()
    return next((name for name, fine in zip(names, flags, strict=True) if not fine), "")


def _tensors(
    modules: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer
) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Name, tensor, and whether infinity is wrong as well."""
    for module in modules:
        for name, parameter in module.named_parameters():
            yield name, parameter, parameter.requires_grad
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    yield f"{key} of {name}", value, True
        for name, buffer in module.named_buffers():
            yield name, buffer, False
