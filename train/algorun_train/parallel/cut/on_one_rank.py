"""Cuts a model on one rank for all: a search runs the whole model many times, forward and backward.

With eight ranks on a host each would need the memory of the whole model's activations and gradients, and an eighth of
the CPUs would have to do it.
"""

import datetime
from collections.abc import Callable
from typing import Any

from torch import nn

from algorun_train.ranks.communicator import Communicator

from .any_module import Cut
from .proof import packed, unpacked

# A model of 7 B weights takes minutes for one pass on the CPU, and a search makes dozens where places are refused.
LIMIT = datetime.timedelta(hours=2)


def by_leader(comm: Communicator, model: nn.Module, example: Any, search: Callable[[], Cut]) -> Cut:
    """The cut that `search` finds on rank 0, of every rank's own model. On all ranks, whose models have to be alike.

    Raises on all ranks the UserError of the search; any other error of it ends all.
    """
    found: list[Cut] = []

    def told() -> bytes:
        found.append(search())
        return packed(found[0].proof)

    data = comm.from_leader(told, LIMIT)
    return comm.on_all(lambda: found[0] if found else Cut(model, example, unpacked(data, model, example)))
