"""A rank of four: a folder's model in two stages, beside the model that one process loads. `folder_stages.py CASE ..`

A case is `FOLDER,SHARDS,HOSTS`; with HOSTS `first` only rank 0 sees the folder. Prints the number of tensors that differ, and the peak
of allocated memory of each rank, what it holds at the end, and the weights that it has, all as a share of the model's weights.
"""

import gc
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from algorun_train.jobs.chosen_model import FolderJobModel
from algorun_train.models.folder_check import checked_folder
from algorun_train.models.folder_config import ModelFolder
from algorun_train.models.folder_model import build_model, load_weights, prepare_transformers
from algorun_train.options.for_parallel import partition_options, run_options
from algorun_train.options.job_options import PipelineJobOptions
from algorun_train.options.mp_parameters import MpParameters
from algorun_train.options.pipeline_layout import lay_out
from algorun_train.parallel.planning.model_partitioner import ModelPartitioner
from algorun_train.parallel.run import process_groups
from algorun_train.parallel.run.pipeline import Pipeline
from algorun_train.parallel.shard.sharded_model import local
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world
from tests.train.programs.measured import allocated, measured

SEED = 7


def in_stages(comm: Communicator, folder: ModelFolder, mine: ModelFolder, shards: str, out: Path) -> Pipeline:
    classes = ["a", "b", "c"] if folder.images else None
    options = PipelineJobOptions(pp=2, shard=shards, batch_size=2, microbatches=2, optimize="memory")
    layout = lay_out(options, MpParameters(), comm.size)

    def build() -> torch.nn.Module:
        whole = FolderJobModel(mine, classes, SEED)
        whole.first_weights()
        return whole.module

    chosen = FolderJobModel(mine, classes, SEED, on_meta=True)
    wishes = partition_options(options, MpParameters())
    partitioner = ModelPartitioner(chosen.module, layout, wishes, comm, build=build)
    example = torch.zeros(1, 3, 16, 16) if folder.images else torch.zeros(1, 8, dtype=torch.int64)
    found = partitioner.partition(example, out)
    axes = process_groups.join(layout.grid, comm.rank, comm.device, layout.shards)
    pipeline = Pipeline(found.stages, axes, run_options(options, layout))
    chosen.fill_stages(pipeline.weights.tensors(), comm, pipeline.splits)
    return pipeline


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def compare(comm: Communicator, folder: ModelFolder, shards: str, hosts: str, out: Path) -> dict[str, float]:
    mine = folder if comm.is_leader or hosts == "all" else replace(folder, path="/nowhere")
    gc.collect()  # the memory of the case before must not be freed meanwhile
    with measured() as profiled:
        pipeline = in_stages(comm, folder, mine, shards, out)
    classes = ["a", "b", "c"] if folder.images else None
    reference = build_model(folder, classes, SEED)
    load_weights(reference, folder, classes, SEED)
    tensors = dict(reference.named_parameters(remove_duplicate=False)) | dict(reference.named_buffers())
    own = pipeline.weights.tensors()
    differ = sum(name not in tensors or not torch.equal(whole(tensor), tensors[name]) for name, tensor in own.items())
    differ += sum(tensor.requires_grad != tensors[name].requires_grad for name, tensor in own.items())
    rows = comm.gather(sorted(own))
    differ += set(reference.state_dict()) != {name for row in rows for name in row} & set(reference.state_dict())
    mapped = {file.stat().st_size for file in Path(folder.path).glob("*.safetensors")}
    weights = {tensor: local(tensor).numel() * tensor.element_size() for tensor in own.values()}
    total = sum(p.numel() * p.element_size() for p in reference.parameters())
    most, held = allocated(profiled, mapped)
    return {"differ": differ, "peak": most / total, "held": held / total, "own": sum(weights.values()) / total}


def main() -> None:
    prepare_transformers()
    with joined(read_world(os.environ)) as comm:
        for number, words in enumerate(sys.argv[1:]):
            path, shards, hosts = words.split(",")
            folder = comm.from_leader(lambda path=path: checked_folder(Path(path), "option --model", None))
            rows = comm.gather(compare(comm, folder, shards, hosts, Path(path) / f"{number}.json"))
            comm.say(
                f"{words} differ={sum(row['differ'] for row in rows)} "
                + " ".join(
                    f"{key}{rank}={row[key]:.3f}" for rank, row in enumerate(rows) for key in ("peak", "held", "own")
                )
            )


main()
