"""smdistributed.modelparallel.torch: pipelines of any model for scripts written for AWS's model parallel library.

    import algorun_smdistributed.modelparallel.torch as smp

    smp.init()
    model = smp.DistributedModel(model)
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters()))

    @smp.step
    def train_step(model, images, labels):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        model.backward(loss)
        return loss

Source: AWS's developer guide, and the public API pages of sagemaker-python-sdk. The work is that of algorun_train.parallel.
"""

from __future__ import annotations

from algorun_smdistributed.cuda_switch import cuda_on_cpu_where_asked
from algorun_smdistributed.modelparallel.core.refused import refuse
from algorun_smdistributed.replicas.gradient_use import GradientUse

from . import amp, nn, optimizers, utils
from .checkpointing import checkpoint, checkpoint_sequential, set_activation_checkpointing
from .checkpoints import resume_from_checkpoint, save_checkpoint
from .comm import (
    allgather,
    barrier,
    broadcast,
    dp_barrier,
    mp_barrier,
    pp_barrier,
    rdp_barrier,
    recv_from,
    send,
    tp_barrier,
)
from .files import load, save
from .manual import partition, set_partition
from .model import DistributedModel
from .optimizer import DistributedOptimizer
from .ranks import (
    DP_GROUP,
    MP_GROUP,
    PP_GROUP,
    RDP_GROUP,
    TP_GROUP,
    WORLD,
    CommGroup,
    RankType,
    dp_rank,
    dp_size,
    get_dp_group,
    get_dp_process_group,
    get_mp_group,
    get_mp_process_group,
    get_pp_group,
    get_pp_process_group,
    get_rdp_group,
    get_rdp_process_group,
    get_tp_group,
    get_tp_process_group,
    get_world_process_group,
    local_rank,
    local_size,
    mp_rank,
    mp_size,
    pp_rank,
    pp_size,
    rank,
    rdp_rank,
    rdp_size,
    size,
    tp_rank,
    tp_size,
)
from .session import init, is_initialized, is_tracing, placed_model
from .state_mod import state
from .step import step
from .step_output import StepOutput
from .tensor_parallel import (
    delay_param_initialization,
    delayed_parameter_initialization,
    model_creation,
    set_tensor_parallelism,
    tensor_parallelism,
    tp_register,
    tp_register_with_module,
)

cuda_on_cpu_where_asked()
GradientUse(placed_model).install()


def __getattr__(name: str) -> object:
    refuse(name)


__all__ = [
    "DP_GROUP", "MP_GROUP", "PP_GROUP", "RDP_GROUP", "TP_GROUP", "WORLD", "CommGroup", "DistributedModel",
    "DistributedOptimizer", "RankType", "StepOutput", "allgather", "amp", "barrier", "broadcast", "checkpoint",
    "checkpoint_sequential", "delay_param_initialization", "delayed_parameter_initialization", "dp_barrier",
    "dp_rank", "dp_size", "get_dp_group", "get_dp_process_group", "get_mp_group", "get_mp_process_group",
    "get_pp_group", "get_pp_process_group", "get_rdp_group", "get_rdp_process_group", "get_tp_group",
    "get_tp_process_group", "get_world_process_group", "init", "is_initialized", "is_tracing", "load", "local_rank",
    "local_size", "model_creation", "mp_barrier", "mp_rank", "mp_size", "nn", "optimizers", "partition",
    "pp_barrier", "pp_rank", "pp_size", "rank", "rdp_barrier", "rdp_rank", "rdp_size", "recv_from",
    "resume_from_checkpoint", "save", "save_checkpoint", "send", "set_activation_checkpointing", "set_partition",
    "set_tensor_parallelism", "size", "state", "step", "tensor_parallelism", "tp_barrier", "tp_rank", "tp_register",
    "tp_register_with_module", "tp_size", "utils",
]  # fmt: skip
