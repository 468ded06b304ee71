"""Manual partition: smp.partition says which stage the layers that a model calls belong to."""

from __future__ import annotations

from algorun_smdistributed.script_types import Given
from algorun_train.common.errors import UserError

from .session import job


class partition:  # AWS's name; a class, which TensorFlow's AutoGraph leaves as it is
    """A context for the model's `call`: direct layers called inside belong to partition `index`; the innermost context counts.

    Without effect where auto_partition is on. UserError for a partition that does not exist.
    """

    def __init__(self, index: int) -> None:
        count = job().layout.grid.pp
        number: Given = index
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
            raise UserError(f"smp.partition({index!r}); allowed: 0 .. {count - 1}; fix: name a partition that exists")
        self._index = index

    def __enter__(self) -> None:
        job().partitions.append(self._index)

    def __exit__(self, *error: object) -> None:
        job().partitions.pop()
