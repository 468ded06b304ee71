"""One step of an adapted folder's model in float64: `lora_step.py FOLDER OUT SHARDS [TP [TARGETS]]`. Rank 0 writes loss and gradients to OUT.

Four samples, shared by the ranks. The adapters start from random numbers, so that each of them has a gradient.
"""

import os
import sys
from pathlib import Path

import torch

from algorun_train.data.batch import Batch
from algorun_train.jobs.lora_model import LoraJobModel
from algorun_train.loop.data_parallel_steps import DataParallelSteps
from algorun_train.loop.losses import PER_LABEL, split_scoring
from algorun_train.loop.sharded_steps import ShardedSteps
from algorun_train.models.folder_config import read_folder
from algorun_train.models.folder_model import prepare_transformers
from algorun_train.options.job_options import DdpJobOptions
from algorun_train.parallel.model.memory import give_memory as give_weights_memory
from algorun_train.parallel.shard.layer_units import layer_units
from algorun_train.parallel.shard.sharded_model import (
    Splits,
    gathered_weights,
    give_memory,
    make_mesh,
    piece_of,
    set_own,
    shard,
    taken,
    whole_shape,
)
from algorun_train.parallel.shard.split_logits import SplitLogits
from algorun_train.parallel.shard.tensor_gradients import TensorGradients
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world

path, out, shards = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
tp = int(sys.argv[4]) if len(sys.argv) > 4 else 1
asked = sys.argv[5] if len(sys.argv) > 5 else None
torch.set_default_dtype(torch.float64)
prepare_transformers()
folder = read_folder(path, "option --model")
classes = [f"c{i}" for i in range(4)] if folder.images else None


def step(comm: Communicator) -> None:
    """In a function: DDP must be gone before the process group is, else its destructor can wait for ever."""
    targets = "q_proj,fc1" if folder.images else asked
    options = DdpJobOptions(lora=2, lora_alpha=6.0, lora_targets=targets, shard=str(shards))
    model = LoraJobModel(options, folder, classes, comm, sharded=shards * tp > 1)
    module = model.module.double()
    mesh = make_mesh(comm.device, comm.rank, comm.size, shards, tp) if shards * tp > 1 else None
    parts = model.split(mesh.tensor, comm) if mesh and mesh.tensor else None
    splits = Splits(parts.splits, mesh.tensor) if parts and mesh and mesh.tensor else None
    gradients = TensorGradients(dict(module.named_parameters()), mesh, parts) if parts and mesh else None
    words = parts.words if parts else None
    scoring = split_scoring(SplitLogits(mesh.tensor, words)) if words and mesh and mesh.tensor else PER_LABEL
    if mesh and shards == 1:
        give_weights_memory([module], comm.device)
        model.fill_shares(comm)
    elif mesh:
        shard(module, layer_units(module), mesh, None)
        give_memory(module, comm.device)
        model.fill_shares(comm)
    else:
        comm.from_leader(model.first_weights)  # DDP sends them
    random = torch.Generator().manual_seed(5)
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            drawn = torch.randn(whole_shape(name, parameter, splits), generator=random) / 4
            set_own(parameter.data, taken(drawn, piece_of(name, parameter.data, splits)))
    if folder.images:
        inputs = torch.rand(4, 3, 16, 16, generator=random) * 2 - 1
        labels = torch.randint(4, (4,), generator=random)
    else:
        inputs, labels = (torch.randint(300, (4, 12), generator=random) for _ in range(2))
    share = 4 * tp // comm.size
    mine = slice(comm.rank // tp * share, (comm.rank // tp + 1) * share)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    stepper = (ShardedSteps if shards > 1 else DataParallelSteps)(
        module, torch.optim.SGD(trained, 1.0), comm, options, gradients, scoring
    )

    def weights() -> dict[str, torch.Tensor]:
        held = gathered_weights(module, mesh, splits) if mesh else module.state_dict()
        return {name: tensor.clone() for name, tensor in held.items()}

    before = weights()
    stepper.train()
    loss = stepper.step([Batch(inputs[mine], labels[mine], share)], labels.numel(), 1.0, 1)
    after = weights()
    loss_sum = sum(row[0] for row in comm.exchange([loss.item()]))
    if comm.is_leader:
        gradients = {name: before[name] - after[name] for name in before}
        torch.save({"loss": loss_sum / labels.numel(), "gradients": gradients}, out)


with joined(read_world(os.environ)) as comm:
    step(comm)
