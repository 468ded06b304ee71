"""One step of a folder's model in a tensor group of all ranks: `split_dropout.py FOLDER OUT`.

Each rank writes OUT.RANK, as JSON: for a step and for one that computes activations again, the sums of its gradients, and what each
dropout of the forward pass has kept: the number of dimensions, and a checksum.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from algorun_train.data.batch import Batch
from algorun_train.jobs.chosen_model import FolderJobModel
from algorun_train.loop.data_parallel_steps import DataParallelSteps
from algorun_train.loop.losses import split_scoring
from algorun_train.loop.optimizer import build_optimizer
from algorun_train.models.folder_config import read_folder
from algorun_train.models.folder_model import prepare_transformers
from algorun_train.options.job_options import DdpJobOptions
from algorun_train.parallel.model import recompute
from algorun_train.parallel.model.memory import give_memory
from algorun_train.parallel.shard.layer_units import layer_list
from algorun_train.parallel.shard.sharded_model import make_mesh
from algorun_train.parallel.shard.split_logits import SplitLogits
from algorun_train.parallel.shard.tensor_gradients import TensorGradients
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world

path, out = Path(sys.argv[1]), sys.argv[2]
BATCH, TOKENS = 2, 16
dropout = functional.dropout


def step(comm: Communicator, again: bool) -> dict[str, object]:
    folder = read_folder(path, "option --model")
    options = DdpJobOptions(tp=comm.size)
    mesh = make_mesh(comm.device, comm.rank, comm.size, 1, comm.size)
    assert mesh.tensor
    inner = FolderJobModel(folder, None, 1, on_meta=True)
    inner.module.model.config._attn_implementation = "eager"  # its dropout is a call that can be seen
    if again:
        for layer in layer_list(inner.module):
            recompute.mark(layer, preserve_rng_state=True)
        recompute.in_place(inner.module)
    parts = inner.split(mesh.tensor, comm)
    give_memory([inner.module], comm.device)
    inner.fill_shares(comm)
    optimizer = build_optimizer(options, inner.module.parameters())
    gradients = TensorGradients(dict(inner.module.named_parameters()), mesh, parts)
    assert parts.words
    scoring = split_scoring(SplitLogits(mesh.tensor, parts.words))
    stepper = DataParallelSteps(inner.module, optimizer, comm, options, gradients, scoring)
    sums: list[float] = []
    optimizer.register_step_pre_hook(
        lambda *_: sums.extend(
            float(each.grad.double().sum()) for each in inner.module.parameters() if each.grad is not None
        )
    )
    kept: list[tuple[int, str]] = []

    def seen(tensor: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        result = dropout(tensor, p, training, inplace)
        if training and p:
            ones = dropout_mask(result, tensor)
            kept.append((tensor.dim(), hashlib.sha256(ones.numpy().tobytes()).hexdigest()))
        return result

    functional.dropout = seen
    stepper.train()
    tokens = torch.arange(BATCH * TOKENS).reshape(BATCH, TOKENS)
    stepper.step([Batch(tokens, tokens, BATCH)], BATCH * TOKENS, 1e-2, 1)
    functional.dropout = dropout
    return {"sums": sums, "kept": kept}


def dropout_mask(result: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Where a value was kept; one that was zero before counts as dropped on all ranks alike."""
    return (result.detach() != 0) & (tensor.detach() != 0)


with joined(read_world(os.environ)) as comm:
    prepare_transformers()
    found = {"plain": step(comm, False), "again": step(comm, True)}
    Path(f"{out}.{comm.rank}").write_text(json.dumps(found))
