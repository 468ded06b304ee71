"""One rank of four: an adapted folder's model in shares, beside the one that one process builds. `lora_shares.py CASE ..`

A case is `FOLDER,SHARDS,TARGETS`, targets separated by `+`. Prints the number of tensors that differ, and the peak of allocated
memory as a share of this rank's weights plus the largest tensor.
"""

import os
import sys
from pathlib import Path

import torch

from algorun_train.jobs.lora_model import LoraJobModel
from algorun_train.models import lora
from algorun_train.models.folder_check import checked_folder
from algorun_train.models.folder_config import ModelFolder
from algorun_train.models.folder_meta import build_on_meta
from algorun_train.models.folder_model import FolderModule, build_model, head_names, load_weights, prepare_transformers
from algorun_train.options.job_options import DdpJobOptions
from algorun_train.parallel.shard.layer_units import layer_units
from algorun_train.parallel.shard.sharded_model import give_memory, make_mesh, shard
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world
from tests.train.programs.measured import allocated, measured

SEED = 7


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def everything(module: FolderModule) -> dict[str, torch.Tensor]:
    """All weights and buffers, also those that no state dict has."""
    return {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}


def in_one_process(folder: ModelFolder, classes: list[str] | None, targets: list[str]) -> FolderModule:
    """The model as a job without shards has it, from weights that are there before the adapters."""
    module = build_model(folder, classes, SEED)
    load_weights(module, folder, classes, SEED)
    head = head_names(folder, classes) if classes else set()
    lora.add_adapters(module, folder, lora.LoraSpec(4, 4, None), targets, head, SEED)
    return module


def compare(comm: Communicator, folder: ModelFolder, shards: int, targets: list[str]) -> dict[str, float]:
    classes = ["a", "b", "c"] if folder.images else None
    options = DdpJobOptions(lora=4, lora_targets=",".join(targets), shard=str(shards), seed=SEED)
    mesh = make_mesh(comm.device, comm.rank, comm.size, shards)
    build_on_meta(folder, classes)  # what transformers makes once
    with measured() as profiled:
        model = LoraJobModel(options, folder, classes, comm, sharded=True)
        module = model.module
        shard(module, layer_units(module), mesh, None)
        give_memory(module, comm.device)
        model.fill_shares(comm)
    mapped = {file.stat().st_size for file in Path(folder.path).glob("*.safetensors")}
    reference = in_one_process(folder, classes, targets)
    right, found = everything(reference), everything(module)
    differ = sum(not torch.equal(whole(found[name]), right[name]) for name in right) + len(found.keys() ^ right.keys())
    wanted = {name: p.requires_grad for name, p in reference.named_parameters()}
    differ += wanted != {name: p.requires_grad for name, p in module.named_parameters()}
    sizes = [p.numel() * p.element_size() for p in reference.parameters()]
    adapters = sum(p.numel() * p.element_size() for p in reference.parameters() if p.requires_grad)
    room = (
        sum(sizes) / shards + max(sizes) + 3 * adapters
    )  # drawn, drawn again by peft, and kept until they are in place
    return {"differ": differ, "adapters": adapters, "peak": allocated(profiled, mapped)[0] / room}


def main() -> None:
    prepare_transformers()
    with joined(read_world(os.environ)) as comm:
        for words in sys.argv[1:]:
            path, shards, targets = words.split(",")
            folder = comm.from_leader(lambda path=path: checked_folder(Path(path), "option --model", None))
            rows = comm.gather(compare(comm, folder, int(shards), targets.split("+")))
            worst = {key: max(row[key] for row in rows) for key in rows[0]}
            comm.say(f"{words} " + " ".join(f"{key}={value:.3f}" for key, value in worst.items()))


main()
