"""smdistributed.dataparallel.tensorflow on MPI or Gloo: scripts for the library's interface for TensorFlow 2.

    import smdistributed.dataparallel.tensorflow as sdp

    sdp.init()
    tape = sdp.DistributedGradientTape(tape)
    sdp.broadcast_variables(model.variables, root_rank=0)

Source: the public API pages of sagemaker-python-sdk, "TensorFlow API" of the distributed data parallel library, 1.0 to 1.2.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

try:
    import tensorflow as tf
except ModuleNotFoundError as missing:
    if missing.name != "tensorflow":
        raise
    raise ImportError(
        "smdistributed.dataparallel.tensorflow: TensorFlow is not installed; allowed: TensorFlow 2; fix: add tensorflow==2.21.0 to "
        "requirements.txt",
        name="smdistributed.dataparallel.tensorflow",
    ) from None

from algorun_smdistributed.collectives import options, tensors
from algorun_smdistributed.collectives.arrays import MEAN
from algorun_smdistributed.collectives.gradients import ReducedTape, reducing
from algorun_smdistributed.collectives.options import Compression
from algorun_smdistributed.collectives.script_ranks import ScriptRanks
from algorun_smdistributed.script_types import Given, Result
from algorun_train.common.errors import UserError

Tensor = Any  # TensorFlow's objects have no types for mypy
REFUSED = ("BroadcastGlobalVariablesHook", "broadcast_global_variables")

_ranks = ScriptRanks("sdp")
init, is_initialized, shutdown = _ranks.init, _ranks.is_initialized, _ranks.shutdown
rank, size, local_rank, local_size = _ranks.rank, _ranks.size, _ranks.local_rank, _ranks.local_size


ReduceOp = SimpleNamespace(AVERAGE=MEAN, SUM="SUM", MIN="MIN", MAX="MAX")
KINDS = "AVERAGE, SUM, MIN, MAX of sdp.ReduceOp"


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]  # TensorFlow has no types
def allreduce(
    tensor: Tensor,
    param_index: int = 0,
    num_params: int = 1,
    compression: Given = Compression.none,
    op: str | None = ReduceOp.AVERAGE,
) -> Tensor:
    """A tensor or tf.IndexedSlices, averaged over all ranks, or as `op` says. On all ranks. The other arguments have no effect."""
    return _allreduce("sdp.allreduce", tensor, op)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def oob_allreduce(tensor: Tensor, compression: Given = Compression.none, op: str | None = ReduceOp.AVERAGE) -> Tensor:
    """As allreduce, for tensors that are no gradients, such as a loss."""
    return _allreduce("sdp.oob_allreduce", tensor, op)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def broadcast(tensor: Tensor, root_rank: int) -> Tensor:
    """The tensor of rank `root_rank` on all ranks, where it has the same shape and type."""
    return tensors.copy(_ranks, [tf.convert_to_tensor(tensor)], root_rank, "sdp.broadcast")[0]


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def broadcast_variables(variables: Given, root_rank: int) -> None:
    """Gives variables the values that they have on rank `root_rank`. On all ranks, with the same variables."""
    tensors.copy_variables(_ranks, list(variables), root_rank, "sdp.broadcast_variables")


def overlap(tensor: Tensor) -> Tensor:
    """The tensor itself: it tells the closed library what may overlap, and changes no result."""
    return tensor


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def DistributedGradientTape(gradtape: tf.GradientTape, *, op: str | None = None, **kwargs: Given) -> ReducedTape:
    """The tape, with gradients averaged over all ranks. Arguments of options.TUNING have no effect."""
    return ReducedTape(gradtape, _reduce("sdp.DistributedGradientTape", op, kwargs))


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def DistributedOptimizer(optimizer: Given, *, op: str | None = None, **kwargs: Given) -> Result:
    """The same Keras optimizer, which now averages gradients over all ranks before it applies them."""
    call = "sdp.DistributedOptimizer"
    return reducing(optimizer, _reduce(call, op, kwargs), call)


def _reduce(call: str, op: str | None, kwargs: dict[str, Given]) -> Any:  # gradients.Reduce
    options.check(call, kwargs)
    kind = tensors.kind_of(call, op, KINDS)
    return lambda found: tensors.reduce(_ranks, found, kind, call)


def _allreduce(call: str, tensor: Tensor, op: str | None) -> Tensor:
    given = tensor if isinstance(tensor, tf.IndexedSlices) else tf.convert_to_tensor(tensor)
    return tensors.reduce(_ranks, [given], tensors.kind_of(call, op, KINDS), call)[0]


def __getattr__(name: str) -> NoReturn:
    if name in REFUSED:
        raise UserError(
            f"sdp.{name} cannot be had: it belongs to tf.estimator, which TensorFlow 2.21 does not have; fix: sdp.broadcast_variables"
        )
    raise AttributeError(f"smdistributed.dataparallel.tensorflow has no {name!r}")


__all__ = [
    "Compression", "DistributedGradientTape", "DistributedOptimizer", "ReduceOp", "allreduce", "broadcast", "broadcast_variables",
    "init", "is_initialized", "local_rank", "local_size", "oob_allreduce", "overlap", "rank", "shutdown", "size",
]  # fmt: skip
