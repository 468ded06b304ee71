"""One rank of four: a folder's model, sharded and filled, beside the model that one process loads. `folder_shares.py CASE ..`

A case is `FOLDER,SHARDS,HOSTS,TP`; with HOSTS `first` only rank 0 sees the folder, with TP above 1 so many ranks split each layer. Prints the number of tensors that differ, and
the peak of allocated memory as a share of this rank's weights plus the largest tensor; `copy` is what one process allocates to
load the weights into a model that it has, as a share of them.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from algorun_train.jobs.chosen_model import FolderJobModel
from algorun_train.jobs.first_shares import fill_shares
from algorun_train.models.folder_check import checked_folder
from algorun_train.models.folder_config import ModelFolder
from algorun_train.models.folder_meta import build_on_meta
from algorun_train.models.folder_model import build_model, load_weights, prepare_transformers
from algorun_train.parallel.model.memory import give_memory as give_whole_memory
from algorun_train.parallel.shard.layer_units import layer_units
from algorun_train.parallel.shard.sharded_model import Splits, gathered_weights, give_memory, local, make_mesh, shard
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


def compare_parts(comm: Communicator, folder: ModelFolder, shards: int, hosts: str, tp: int) -> dict[str, float]:
    """As `compare`, in tensor groups. The peak is that of reading: before it a small copy of the model is tried."""
    mesh = make_mesh(comm.device, comm.rank, comm.size, shards, tp)
    assert mesh.tensor
    mine = folder if comm.is_leader or hosts == "all" else replace(folder, path="/nowhere")
    inner = FolderJobModel(folder, None, SEED, on_meta=True)
    parts = inner.split(mesh.tensor, comm)
    inner._folder = mine
    splits = Splits(parts.splits, mesh.tensor)
    with measured() as profiled:
        if shards > 1:
            shard(inner.module, layer_units(inner.module), mesh, None)
            give_memory(inner.module, comm.device)
        else:
            give_whole_memory([inner.module], comm.device)
        inner.fill_shares(comm)
    mapped = {file.stat().st_size for file in Path(folder.path).glob("*.safetensors")}
    found = gathered_weights(inner.module, mesh, splits)
    reference = build_model(folder, None, SEED)
    load_weights(reference, folder, None, SEED)
    right = reference.state_dict()
    differ = sum(not torch.equal(found[name], right[name]) for name in right) if comm.is_leader else 0
    held = sum(local(weight).numel() * weight.element_size() for weight in inner.module.parameters())
    largest = max(weight.numel() * weight.element_size() for weight in reference.parameters())
    return {"differ": differ, "peak": allocated(profiled, mapped)[0] / (held + largest), "copy": 0.0}


def main() -> None:
    prepare_transformers()
    with joined(read_world(os.environ)) as comm:
        for words in sys.argv[1:]:
            path, shards, hosts, tp = words.split(",")
            folder = comm.from_leader(lambda path=path: checked_folder(Path(path), "option --model", None))
            asked = comm, folder, int(shards), hosts
            rows = comm.gather(compare_parts(*asked, int(tp)) if int(tp) > 1 else compare(*asked))
            worst = {key: max(row[key] for row in rows) for key in rows[0]}
            comm.say(f"{words} " + " ".join(f"{key}={value:.3f}" for key, value in worst.items()))


main()
