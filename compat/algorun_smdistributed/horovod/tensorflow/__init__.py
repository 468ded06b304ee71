"""horovod.tensorflow on MPI or Gloo: what scripts for TensorFlow 2 use, where Horovod itself is not installed.

    import horovod.tensorflow as hvd

    hvd.init()
    tape = hvd.DistributedGradientTape(tape)
    hvd.broadcast_variables(model.variables, root_rank=0)

In a job of smdistributed.modelparallel the ranks are those with the same partition: hvd.rank() is smp.dp_rank(). Source:
Horovod's public documentation of its interface for TensorFlow.
"""

from __future__ import annotations

import os
from typing import Any, NoReturn

from algorun_smdistributed.modelparallel.graph.requirements import LEGACY
from algorun_smdistributed.script_types import Given, Result

# Such a job needs Keras 2, and TensorFlow decides for one of both while it is imported. Scripts import this module first.
if os.environ.get("SM_HP_MP_PARAMETERS"):
    os.environ.setdefault(LEGACY, "1")

import tensorflow as tf

from algorun_smdistributed.collectives import options, tensors
from algorun_smdistributed.collectives.arrays import MEAN
from algorun_smdistributed.collectives.gradients import ReducedTape, reducing
from algorun_smdistributed.collectives.options import Compression
from algorun_smdistributed.collectives.script_ranks import ScriptRanks
from algorun_train.common.errors import UserError

Tensor = Any  # TensorFlow's objects have no types for mypy
Variable = Any
Average, Sum, Min, Max = MEAN, "SUM", "MIN", "MAX"
KINDS = "hvd.Average, hvd.Sum, hvd.Min, hvd.Max"
REFUSED = (
    "Adasum", "Product", "BroadcastGlobalVariablesHook", "PartialDistributedGradientTape", "ProcessSet", "add_process_set",
    "allgather", "allgather_object", "alltoall", "broadcast_global_variables", "broadcast_object", "broadcast_object_fn",
    "cross_rank", "cross_size", "elastic", "global_process_set", "grouped_allgather", "grouped_allreduce", "join", "reducescatter",
)  # fmt: skip

_ranks = ScriptRanks("hvd")
is_initialized, shutdown = _ranks.is_initialized, _ranks.shutdown
rank, size, local_rank, local_size = _ranks.rank, _ranks.size, _ranks.local_rank, _ranks.local_size


def init(*args: Given, **kwargs: Given) -> None:
    """Joins the ranks of the job: by MPI where mpirun has started them, else by Gloo. On all ranks; a second call does nothing.

    UserError for other groups of ranks.
    """
    if any(args) or any(kwargs.values()):
        raise UserError("hvd.init: a group of ranks; allowed: none, for all of them; fix: hvd.init()")
    _ranks.init()


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]  # TensorFlow has no types
def allreduce(tensor: Tensor, average: bool | None = None, *, op: str | None = None, **kwargs: Given) -> Tensor:
    """A tensor or tf.IndexedSlices, averaged over all ranks, or as `op` says: hvd.Average, Sum, Min, Max. On all ranks.

    `average` False is Sum, as in Horovod. Arguments of options.TUNING have no effect.
    """
    options.check("hvd.allreduce", kwargs)
    if average is not None and op is not None:
        raise UserError("hvd.allreduce: both average and op; allowed: one of them; fix: leave average out")
    kind = tensors.kind_of("hvd.allreduce", op or (Sum if average is False else None), KINDS)
    return tensors.reduce(_ranks, [_tensor(tensor)], kind, "hvd.allreduce")[0]


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def broadcast(tensor: Tensor, root_rank: int, **kwargs: Given) -> Tensor:
    """The tensor of rank `root_rank` on all ranks, where it has the same shape and type."""
    options.check("hvd.broadcast", kwargs)
    return tensors.copy(_ranks, [tf.convert_to_tensor(tensor)], root_rank, "hvd.broadcast")[0]


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def broadcast_variables(variables: Given, root_rank: int, **kwargs: Given) -> None:
    """Gives variables the values that they have on rank `root_rank`. On all ranks, with the same variables."""
    options.check("hvd.broadcast_variables", kwargs)
    tensors.copy_variables(_ranks, list(variables), root_rank, "hvd.broadcast_variables")


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def DistributedGradientTape(
    gradtape: tf.GradientTape, *, op: str | None = None, sparse_as_dense: bool = False, **kwargs: Given
) -> ReducedTape:
    """The tape, with gradients averaged over all ranks. Arguments of options.TUNING have no effect."""
    return ReducedTape(gradtape, _reduce("hvd.DistributedGradientTape", op, sparse_as_dense, kwargs))


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def DistributedOptimizer(
    optimizer: Given, *, op: str | None = None, sparse_as_dense: bool = False, **kwargs: Given
) -> Result:
    """The same Keras optimizer, which now averages gradients over all ranks before it applies them."""
    call = "hvd.DistributedOptimizer"
    return reducing(optimizer, _reduce(call, op, sparse_as_dense, kwargs), call)


def _reduce(call: str, op: str | None, sparse_as_dense: bool, kwargs: dict[str, Given]) -> Any:  # gradients.Reduce
    options.check(call, kwargs)
    kind = tensors.kind_of(call, op, KINDS)
    return lambda found: tensors.reduce(_ranks, [_tensor(each, sparse_as_dense) for each in found], kind, call)


def _tensor(given: Given, dense: bool = False) -> Tensor:
    return given if isinstance(given, tf.IndexedSlices) and not dense else tf.convert_to_tensor(given)


def __getattr__(name: str) -> NoReturn:
    if name in REFUSED:
        raise UserError(
            f"hvd.{name} cannot be had: this horovod.tensorflow is algorun-smdistributed's, which has {', '.join(__all__)}; "
            "fix: use these, or an image with Horovod"
        )
    raise AttributeError(f"horovod.tensorflow has no {name!r}")


__all__ = [
    "Average", "Compression", "DistributedGradientTape", "DistributedOptimizer", "Max", "Min", "Sum", "allreduce", "broadcast",
    "broadcast_variables", "init", "is_initialized", "local_rank", "local_size", "rank", "shutdown", "size",
]  # fmt: skip
