"""One step of a Hugging Face folder's model in float64: `folder_step.py FOLDER OUT`. Rank 0 writes loss and gradients to OUT.

Four samples, shared by the ranks; some labels of some samples do not count.
"""

import os
import sys
from pathlib import Path

import torch

from algorun_train.data.batch import IGNORED, Batch
from algorun_train.loop.data_parallel_steps import DataParallelSteps
from algorun_train.models.folder_config import read_folder
from algorun_train.models.folder_model import build_model, load_weights, prepare_transformers
from algorun_train.options.job_options import DdpJobOptions
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world

path, out = Path(sys.argv[1]), Path(sys.argv[2])
torch.set_default_dtype(torch.float64)
prepare_transformers()
folder = read_folder(path, "option --model")
classes = [str(i) for i in range(10)] if folder.images else None


def step(comm: Communicator) -> None:
    """In a function: DDP must be gone before the process group is, else its destructor can wait for ever."""
    module = build_model(folder, classes, comm.rank)  # other weights on each rank, until DDP sends those of rank 0
    if comm.is_leader:
        load_weights(module, folder, classes)
    module.double()
    random = torch.Generator().manual_seed(5)
    if folder.images:
        inputs = torch.rand(4, 3, 16, 16, generator=random) * 2 - 1
        labels = torch.randint(10, (4,), generator=random)
    else:
        inputs, labels = (torch.randint(300, (4, 12), generator=random) for _ in range(2))
        labels[0, :7] = labels[2, 3:] = IGNORED
    share = 4 // comm.size
    mine = slice(comm.rank * share, (comm.rank + 1) * share)
    optimizer = torch.optim.SGD(module.parameters(), 1.0)
    stepper = DataParallelSteps(module, optimizer, comm, DdpJobOptions())
    stepper.warm_up(torch.zeros_like(inputs[mine]), torch.zeros_like(labels[mine]))
    before = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    stepper.train()
    total = int((labels != IGNORED).sum())
    loss = stepper.step([Batch(inputs[mine], labels[mine], share)], total, 1.0, 1)
    gradients = {name: before[name] - weight.detach() for name, weight in module.named_parameters()}
    loss_sum = sum(row[0] for row in comm.exchange([loss.item()]))
    if comm.is_leader:
        torch.save({"loss": loss_sum / total, "gradients": gradients}, out)


with joined(read_world(os.environ)) as comm:
    step(comm)
