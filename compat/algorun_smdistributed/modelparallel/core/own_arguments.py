"""Arguments that a step function changes in place.

With several partitions a rank runs the function to learn what it does, and another rank gets its arguments. So each run
has tensors of its own, where the function changes them. The first run shows which these are.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

import torch

from algorun_smdistributed.script_types import Given
from algorun_train.parallel.model import trees
from algorun_train.ranks import tensor_memory

Part = dict[str, Given]
"""the named arguments of one microbatch"""


def copied(parts: Iterable[Part], names: AbstractSet[str] | None) -> list[Part]:
    """The microbatches with copies of the tensors in the arguments `names`, or in all if None.

    Copies share memory as the tensors do; what shares memory with a copied tensor is copied, too. A weight stays itself:
    torch lets nobody change it in place where gradients count.
    """
    parts = list(parts)
    if names is not None and not names:
        return parts
    tensors: list[torch.Tensor] = []
    wanted: list[bool] = []
    for part in parts:
        for name, value in part.items():
            tensors += trees.leaves(value)
            wanted += [names is None or name in names] * (len(tensors) - len(wanted))
    copies = iter(tensor_memory.copies(tensors, wanted))
    return [{name: trees.mapped(value, lambda _: next(copies)) for name, value in part.items()} for part in parts]


Watched = dict[str, list[tuple[torch.Tensor, int]]]
"""the tensors of each argument, and how often each had been changed in place"""


def watched(parts: Iterable[Part]) -> Watched:
    """The tensors in the microbatches as they are now. Those of inference mode are left out: nothing counts their changes."""
    found: Watched = {}
    for part in parts:
        for name, value in part.items():
            tensors = (tensor for tensor in trees.leaves(value) if not tensor.is_inference())
            found.setdefault(name, []).extend((tensor, tensor._version) for tensor in tensors)
    return found


def changed(before: Watched) -> frozenset[str]:
    """The arguments with a tensor that has been changed in place since then."""
    return frozenset(name for name, tensors in before.items() if any(t._version != count for t, count in tensors))
