"""One step of an adapted folder's model in float64: `lora_step.py FOLDER OUT SHARDS`. Rank 0 writes loss and gradients to OUT.

Four samples, shared by the ranks. The adapters start from random numbers, so that each of them has a gradient.
"""

import os
import sys
from pathlib import Path

import torch

from algorun_train.data.batch import Batch
from algorun_train.jobs.lora_model import LoraJobModel
from algorun_train.loop.data_parallel_steps import DataParallelSteps
from algorun_train.loop.sharded_steps import ShardedSteps
from algorun_train.models.folder_config import read_folder
from algorun_train.models.folder_model import prepare_transformers
from algorun_train.options.job_options import DdpJobOptions
from algorun_train.parallel.shard.layer_units import layer_units
from algorun_train.parallel.shard.sharded_model import (
    gathered_weights,
    give_memory,
    make_mesh,
    own_rows,
    set_own,
    shard,
)
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world

path, out, shards = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
torch.set_default_dtype(torch.float64)
prepare_transformers()
folder = read_folder(path, "option --model")
classes = [f"c{i}" for i in range(4)] if folder.images else None


def step(comm: Communicator) -> None:
    """In a function: DDP must be gone before the process group is, else its destructor can wait for ever."""
    targets = "q_proj,fc1" if folder.images else None
    options = DdpJobOptions(lora=2, lora_alpha=6.0, lora_targets=targets, shard=str(shards))
    model = LoraJobModel(options, folder, classes, comm, sharded=shards > 1)
    module = model.module.double()
    mesh = make_mesh(comm.device, comm.rank, comm.size, shards) if shards > 1 else None
    if mesh:
        shard(module, layer_units(module), mesh, None)
        give_memory(module, comm.device)
        model.fill_shares(comm)
    else:
        comm.from_leader(model.first_weights)  # DDP sends them
    random = torch.Generator().manual_seed(5)
    for parameter in module.parameters():
        if parameter.requires_grad:
            drawn, rows = torch.randn(parameter.shape, generator=random) / 4, own_rows(parameter.data)
            set_own(parameter.data, drawn if rows is None else drawn[rows])
    if folder.images:
        inputs = torch.rand(4, 3, 16, 16, generator=random) * 2 - 1
        labels = torch.randint(4, (4,), generator=random)
    else:
        inputs, labels = (torch.randint(300, (4, 12), generator=random) for _ in range(2))
    share = 4 // comm.size
    mine = slice(comm.rank * share, (comm.rank + 1) * share)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    stepper = (ShardedSteps if mesh else DataParallelSteps)(module, torch.optim.SGD(trained, 1.0), comm, options)

    def weights() -> dict[str, torch.Tensor]:
        held = gathered_weights(module, mesh) if mesh else module.state_dict()
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
