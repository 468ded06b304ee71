"""Cuts a model on one rank for all: a search runs the uncut model many times, forward and backward.

If all eight ranks of a host searched, each would need memory for the activations and gradients of the uncut model, and
would do the same work with an eighth of the CPUs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import zip_longest

from torch import nn

from algorun_train.common.errors import UserError
from algorun_train.parallel.cut.any_module import Cut
from algorun_train.parallel.cut.found_cut import packed, unpacked
from algorun_train.parallel.model.trees import arguments, leaves
from algorun_train.ranks.communicator import LONG_WORK, Communicator

from .model_hash import model_hash


def cut_by_leader(
    comm: Communicator,
    model: nn.Module,
    example: object,
    search: Callable[[nn.Module], Cut],
    build: Callable[[], nn.Module] | None = None,
) -> Cut:
    """The cut that `search` finds on rank 0, applied to each rank's own model. Call it on all ranks, with equal models.

    `build` makes the same model with weights, if `model` has none (torch's meta device); it is gone afterwards. Another rank
    than 0 calls it only if its forward pass returns what cannot be sent; weights may then have any values.
    A UserError of the search is raised on all ranks. Any other error of it ends all ranks.
    """
    found: list[Cut] = []

    def searched() -> bytes:
        cutting = search(build() if build else model)
        found.append(Cut(model, example, cutting.found) if build else cutting)
        return packed(cutting.found)

    data = comm.from_leader(searched, LONG_WORK)
    if build:
        gc.collect()  # modules and their patched methods refer to each other
    return comm.on_all(lambda: found[0] if found else Cut(model, example, unpacked(data, build or model, example)))


def check_same_models(comm: Communicator, model: nn.Module, example: object) -> None:
    """Raises a UserError on all ranks if weights or example have other names or shapes on one of them. On all ranks."""
    named = [*model.named_parameters(), *model.named_buffers()]
    specs = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in named]
    inputs = [(f"input {i}", tuple(t.shape), str(t.dtype)) for i, t in enumerate(leaves(arguments(example)))]
    hashes = comm.gather(model_hash(inputs + specs))
    if len(set(hashes)) == 1:
        return
    rows = comm.gather(inputs + specs)
    for rank, row in enumerate(rows):
        if row != rows[0]:
            mine, its = next(pair for pair in zip_longest(rows[0], row) if pair[0] != pair[1])
            raise UserError(
                f"rank {rank} has another model or example than rank 0: {_shown(its)} in the place of "
                f"{_shown(mine)}; allowed: the same on all ranks; fix: build both alike on every rank"
            )


def _shown(spec: tuple[str, tuple[int, ...], str] | None) -> str:
    return f"{spec[0]} {list(spec[1])} {spec[2].removeprefix('torch.')}" if spec else "nothing"
