"""smdistributed.modelparallel.tensorflow: pipelines of Keras models for scripts written for AWS's model parallel library.

    import smdistributed.modelparallel.tensorflow as smp

    smp.init()

    class MyModel(smp.DistributedModel):
        ..

    model = MyModel()

    @smp.step
    def forward_backward(images, labels):
        predictions = model(images, training=True)
        loss = loss_obj(labels, predictions)
        return optimizer.get_gradients(loss, model.trainable_variables), loss

Source: AWS's announcement, and the public API pages of sagemaker-python-sdk. Ranks talk by MPI; TensorFlow with legacy Keras.
"""

from __future__ import annotations

from typing import NoReturn

from algorun_smdistributed.modelparallel.graph import requirements
from algorun_train.common.errors import UserError

requirements.check()

from .checkpoints import CheckpointManager  # noqa: E402
from .model import DistributedModel  # noqa: E402
from .ranks import (  # noqa: E402
    barrier,
    dp_rank,
    dp_size,
    local_rank,
    local_size,
    mp_barrier,
    mp_rank,
    mp_size,
    pp_barrier,
    pp_rank,
    pp_size,
    rank,
    size,
)
from .session import init, is_initialized  # noqa: E402
from .step import step  # noqa: E402
from .step_output import StepOutput  # noqa: E402

REFUSED = {
    "partition": "layers are placed by measuring them; fix: leave smp.partition and auto_partition out",
}


def __getattr__(name: str) -> NoReturn:
    if name in REFUSED:
        raise UserError(f"smdistributed: smp.{name} cannot be had: {REFUSED[name]}")
    raise AttributeError(f"{requirements.NAME} has no {name!r}")


__all__ = [
    "CheckpointManager", "DistributedModel", "StepOutput", "barrier", "dp_rank", "dp_size", "init", "is_initialized", "local_rank",
    "local_size", "mp_barrier", "mp_rank", "mp_size", "pp_barrier", "pp_rank", "pp_size", "rank", "size", "step",
]  # fmt: skip
