"""One rank of four: a folder's model, sharded and filled, beside the model that one process loads. `folder_shares.py CASE ..`

A case is `FOLDER,SHARDS,HOSTS`; with HOSTS `first` only rank 0 sees the folder. Prints the number of tensors that differ, and
the peak of allocated memory as a share of this rank's weights plus the largest tensor; `copy` is what one process allocates to
load the weights into a model that it has, as a share of them.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from algorun_train.jobs.first_shares import fill_shares
from algorun_train.models.folder_check import checked_folder
from algorun_train.models.folder_config import ModelFolder
from algorun_train.models.folder_meta import build_on_meta
from algorun_train.models.folder_model import build_model, load_weights, prepare_transformers
from algorun_train.parallel.shard.layer_units import layer_units
from algorun_train.parallel.shard.sharded_model import give_memory, make_mesh, shard
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world
from tests.train.programs.measured import allocated, measured

SEED = 7


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def compare(comm: Communicator, folder: ModelFolder, shards: int, hosts: str) -> dict[str, float]:
    classes = ["a", "b", "c"] if folder.images else None
    mesh = make_mesh(comm.device, comm.rank, comm.size, shards)
    mine = folder if comm.is_leader or hosts == "all" else replace(folder, path="/nowhere")
    build_on_meta(folder, classes)  # what transformers makes once
    with measured() as profiled:
        module = build_on_meta(folder, classes)
        shard(module, layer_units(module), mesh, None)
        give_memory(module, comm.device)
        fill_shares(module.model.state_dict(keep_vars=True), mine, classes, SEED, comm)
    mapped = {file.stat().st_size for file in Path(folder.path).glob("*.safetensors")}
    reference = build_model(folder, classes, SEED)
    with measured() as loaded:
        load_weights(reference, folder, classes, SEED)
    right = reference.state_dict() | dict(reference.named_buffers())
    found = module.state_dict() | dict(module.named_buffers())
    differ = sum(not torch.equal(whole(found[name]), right[name]) for name in right) + len(found.keys() ^ right.keys())
    wanted = {name: p.requires_grad for name, p in reference.named_parameters()}
    differ += wanted != {name: p.requires_grad for name, p in module.named_parameters()}
    sizes = [p.numel() * p.element_size() for p in reference.parameters()]
    share = allocated(profiled, mapped)[0] / (sum(sizes) / shards + max(sizes))
    return {"differ": differ, "peak": share, "copy": allocated(loaded, mapped)[0] / sum(sizes)}


def main() -> None:
    prepare_transformers()
    with joined(read_world(os.environ)) as comm:
        for words in sys.argv[1:]:
            path, shards, hosts = words.split(",")
            folder = comm.from_leader(lambda path=path: checked_folder(Path(path), "option --model", None))
            rows = comm.gather(compare(comm, folder, int(shards), hosts))
            worst = {key: max(row[key] for row in rows) for key in rows[0]}
            comm.say(f"{words} " + " ".join(f"{key}={value:.3f}" for key, value in worst.items()))


main()
