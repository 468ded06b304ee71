"""One rank of four: what a training step of a small Llama holds at its peak. `sharded_memory.py SHARDS ..`

Prints bytes by kind as torch's memory trackers count tensors on the CPU (gloo's buffers are theirs: NCCL has its own). Kinds
are those of the tracker; `weights` are the model's, `unit` the largest unit's, `saved` what a forward pass keeps for its
backward pass in one process without sharding.
"""

import os
import sys

import torch
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import LlamaConfig, LlamaForCausalLM

from algorun_train.data.batch import Batch
from algorun_train.loop.data_parallel_steps import DataParallelSteps, sum_of_losses
from algorun_train.loop.optimizer import build_optimizer
from algorun_train.loop.sharded_steps import ShardedSteps
from algorun_train.models.folder_model import LanguageModel
from algorun_train.options.job_options import DdpJobOptions
from algorun_train.parallel.shard.layer_units import layer_units
from algorun_train.parallel.shard.sharded_model import make_mesh, shard
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "vocab_size": 304,
}
TOKENS = torch.zeros(2, 32, dtype=torch.int64)


def saved_bytes(model: LanguageModel) -> int:
    """The bytes that a forward pass keeps for the backward pass, without weights."""
    kept = {p.untyped_storage().data_ptr(): 0 for p in model.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept.setdefault(storage.data_ptr(), storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = sum_of_losses(model(TOKENS), TOKENS)
    del loss
    return sum(kept.values())


def measure(comm: Communicator, shards: int) -> dict[str, int]:
    torch.manual_seed(0)
    model, options = LanguageModel(LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2))), DdpJobOptions()
    units = layer_units(model)
    found = {"weights": bytes_of(model), "unit": max(map(bytes_of, units)), "saved": saved_bytes(model)}
    if shards > 1:
        shard(model, units, make_mesh(comm.device, comm.rank, comm.size, shards), None)
    kind = ShardedSteps if shards > 1 else DataParallelSteps
    stepper = kind(model, build_optimizer(options, model.parameters()), comm, options)
    batches = [Batch(TOKENS, TOKENS.clone(), 2)]
    stepper.train()
    stepper.step(batches, TOKENS.numel() * comm.size, 1e-3, 1)  # the moments come with the first step
    if shards > 1:
        tracker = FSDPMemTracker(model, stepper.optimizer)
        tracker.track_inputs((TOKENS,))
    else:
        tracker = MemTracker()
        tracker.track_external(model, stepper.optimizer)
    with tracker:
        stepper.step(batches, TOKENS.numel() * comm.size, 1e-3, 2)
    peak = tracker.get_tracker_snapshot("peak")[comm.device]
    return found | {str(kind).rpartition(".")[2].lower(): value for kind, value in peak.items()}


def bytes_of(module: torch.nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


with joined(read_world(os.environ)) as comm:
    for words in sys.argv[1:]:
        comm.say(f"{words} " + " ".join(f"{key}={value}" for key, value in measure(comm, int(words)).items()))
