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

Source: AWS's announcement, and the public API pages of sagemaker-python-sdk. Ranks talk by MPI or Gloo; TensorFlow with legacy Keras.
"""

from __future__ import annotations

from algorun_smdistributed.modelparallel.graph import requirements

requirements.check()

from .checkpoints import CheckpointManager  # noqa: E402
from .manual import partition  # noqa: E402
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
from .step import register_post_partition_hook, step  # noqa: E402
from .step_output import StepOutput  # noqa: E402

__all__ = [
    "CheckpointManager", "DistributedModel", "StepOutput", "barrier", "dp_rank", "dp_size", "init", "is_initialized", "local_rank",
    "local_size", "mp_barrier", "mp_rank", "mp_size", "partition", "pp_barrier", "pp_rank", "pp_size", "rank",
    "register_post_partition_hook", "size", "step",
]  # fmt: skip
