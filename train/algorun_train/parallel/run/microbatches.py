"""A batch as microbatches."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from algorun_train.common.errors import UserError
from algorun_train.parallel.model.segments import TensorSpec
from algorun_train.parallel.model.trees import arguments, in_order, leaves


def in_microbatches(
    inputs: object,
    targets: torch.Tensor,
    specs: Sequence[TensorSpec],
    count: int,
) -> tuple[list[tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]:
    """The tensors of the model's arguments and the targets, as `count` microbatches.

    `inputs` are the arguments for the batch, nested like the example; `specs` are the tensors of one microbatch.
    Raises UserError for other shapes. They must not change: gloo writes a short message into the larger buffer, whose
    other rows would keep old data.
    """
    tensors = leaves(arguments(in_order(inputs)))
    wanted = [[spec.shape[0] * count, *spec.shape[1:]] for spec in specs]
    found = [list(tensor.shape) for tensor in tensors]
    if found != wanted:
        raise UserError(
            f"a batch of shape {_shown(found)}; allowed: {_shown(wanted)}, that is {count} microbatches of "
            f"{specs[0].shape[0]}; fix: pad the last batch, or leave it out"
        )
    if list(targets.shape[:1]) != wanted[0][:1]:
        raise UserError(
            f"targets of shape {list(targets.shape)} for a batch of {wanted[0][0]}; allowed: {wanted[0][0]} rows, one "
            "per sample; fix: give the targets of this batch"
        )
    return list(zip(*(tensor.chunk(count) for tensor in tensors), strict=True)), targets.chunk(count)


def _shown(shapes: list[list[int]]) -> str:
    return ", ".join(map(str, shapes))
