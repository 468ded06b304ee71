"""Trains a folder's model twice on the same batches in bf16, whole and sharded over this one rank: WHERE STEPS BATCH CONTEXT LR.

`ddp --shard all` leaves the model of a single rank whole, so the parts that it is made of are called here. Prints the
losses of both, the backend that has the GPU's tensors, and the collectives of a sharded step that torch's profiler sees.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import profile

from algorun_train.data.batch import Batch
from algorun_train.loop.data_parallel_steps import DataParallelSteps
from algorun_train.loop.optimizer import build_optimizer
from algorun_train.loop.sharded_steps import ShardedSteps
from algorun_train.models.folder_config import ModelFolder, read_folder
from algorun_train.models.folder_model import build_model, load_weights, prepare_transformers
from algorun_train.options.job_options import DdpJobOptions
from algorun_train.parallel.shard.layer_units import layer_units
from algorun_train.parallel.shard.sharded_model import make_mesh, shard
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world

COLLECTIVES = ("all_gather", "allgather", "reduce_scatter", "all_reduce", "allreduce")


def batches(text: Path, steps: int, size: int, context: int) -> list[Batch]:
    """A token is a byte of the text here, whatever the tokenizer's numbers are."""
    tokens = torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8).long()
    rows = tokens[: steps * size * context].view(steps, size, context)
    found = []
    for inputs in rows:
        labels = inputs.roll(-1, 1)
        labels[:, -1] = -100  # the token behind the last one is not known
        found.append(Batch(inputs, labels, size))
    return found


def losses(
    folder: ModelFolder, comm: Communicator, given: list[Batch], rate: float, sharded: bool
) -> dict[str, object]:
    """The mean loss of each step, and how many collectives the last one called."""
    options = DdpJobOptions(precision="bf16", epochs=1)
    model = build_model(folder, None, 0)
    load_weights(model, folder, None)
    model.to(comm.device)
    if sharded:
        shard(model, layer_units(model), make_mesh(comm.device, comm.rank, comm.size, comm.size), torch.bfloat16)
    kind = ShardedSteps if sharded else DataParallelSteps
    stepper = kind(model, build_optimizer(options, model.parameters()), comm, options)
    stepper.train()
    found, called = [], 0
    for number, batch in enumerate(given, start=1):
        here = Batch(batch.inputs.to(comm.device), batch.labels.to(comm.device), batch.valid)
        counted = int((here.labels >= 0).sum())
        if number == len(given):
            with profile() as seen:
                loss = stepper.step([here], counted, rate, number)
            called = sum(any(word in event.name.lower() for word in COLLECTIVES) for event in seen.events())
        else:
            loss = stepper.step([here], counted, rate, number)
        found.append(loss.item() / counted)
    return {"losses": found, "collectives": called}


def main(where: Path, steps: int, size: int, context: int, rate: float) -> None:
    prepare_transformers()
    given = batches(where / "train" / "text.txt", steps, size, context)
    with joined(read_world(os.environ)) as comm:
        folder = read_folder(where / "model", "argument 1")
        both = {name: losses(folder, comm, given, rate, name == "sharded") for name in ("whole", "sharded")}
        backends = dict(pair.split(":") for pair in str(dist.get_backend_config()).split(","))  # cpu:gloo,cuda:nccl
        said = {**both, "backend": backends.get(comm.device.type), "device": comm.device.type}
        print("measured: " + json.dumps(said), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]), float(sys.argv[5]))
