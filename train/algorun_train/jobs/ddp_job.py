"""The job `ddp`: an image classifier or a language model, complete on every rank; each rank computes its share of the batch."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from algorun.inside.stop_flag import StopFlag
from algorun_train.checkpoint.ddp_checkpoints import DdpCheckpoints
from algorun_train.checkpoint.shards import ShardStore
from algorun_train.checkpoint.state_file import JobRecord
from algorun_train.common.errors import UserError
from algorun_train.data.sampler import Batching
from algorun_train.loop.data_parallel_steps import DataParallelSteps
from algorun_train.loop.losses import PER_LABEL, split_scoring
from algorun_train.loop.optimizer import build_optimizer
from algorun_train.loop.sharded_steps import ShardedSteps
from algorun_train.models.flops import flops_per_token
from algorun_train.options.job_options import DdpJobOptions
from algorun_train.options.shard_layout import shards_of
from algorun_train.parallel.model import recompute
from algorun_train.parallel.model.memory import give_memory
from algorun_train.parallel.shard.layer_units import layer_list, layer_units
from algorun_train.parallel.shard.sharded_model import ShardMesh, Splits, gathered_weights, make_mesh, shard
from algorun_train.parallel.shard.sharded_model import give_memory as give_shares_memory
from algorun_train.parallel.shard.split import TensorParts
from algorun_train.parallel.shard.split_logits import SplitLogits
from algorun_train.parallel.shard.tensor_gradients import TensorGradients
from algorun_train.ranks.communicator import LONG_WORK, Communicator
from algorun_train.ranks.world import read_world

from .chosen_data import load_data
from .chosen_model import choose_model, job_description, job_identity, job_inputs
from .folder_options import for_folder, open_folder
from .lora_model import LoraJobModel, check_lora
from .resuming import training_values
from .skeleton import JobContext, TrainingJob, joined_job, numerics, train


def run(options: DdpJobOptions, stop: StopFlag) -> None:
    """Joins the ranks and trains. Call it on all ranks. Raises UserError."""
    with joined_job(options, read_world(os.environ), stop) as context:
        if options.compile:
            context.comm.from_leader(_check_compiler)
        train(DdpJob(options, context), context)


class DdpJob(TrainingJob):
    """Data, model and optimizer of one job."""

    options: DdpJobOptions

    def __init__(self, options: DdpJobOptions, context: JobContext) -> None:
        self._comm = context.comm
        folder = open_folder(options, context.folders.base_model, self._comm)
        self.options = options = for_folder(options, folder) if folder else options
        self.replica = "rank" if options.tp == 1 else "tensor group"
        check_lora(options, folder, self._comm)
        self._data = load_data(options, context.folders, self._comm, folder)
        self.source = self._data.source
        sharded = shards_of(options, self._comm.size) > 1 or options.tp > 1
        self._chosen = (
            LoraJobModel(options, folder, self._data.classes, self._comm, sharded)
            if folder and options.lora
            else choose_model(options, folder, self._data, sharded)
        )
        self._model = self._chosen.module
        self._weights = sum(parameter.numel() for parameter in self._model.parameters())
        self.sample_flops = flops_per_token(self._model) * self.source.sample_tokens
        self._first_weights: str | None = None  # the line about them, once they are loaded
        self._mesh, self._parts = self._lay_out()
        axis = self._mesh.tensor if self._mesh else None
        self._splits = Splits(self._parts.splits, axis) if self._parts and axis else None
        if self._chosen.always_reads_folder:
            self._read_first_weights()
        self._optimizer = build_optimizer(options, self._model.parameters())
        replica, replicas = self._comm.rank // options.tp, self._comm.size // options.tp
        self.batching = Batching(options.batch_size, options.accumulation, replica, replicas)
        store = ShardStore(context.folders.checkpoints, options.keep_checkpoints)
        self.training = training_values(options, self.batching, job_inputs(folder, self._data, self._comm))
        record = JobRecord(job_identity(self._chosen, self._data, options), self.training)
        self.checkpoints = DdpCheckpoints(
            store, record, self._model, self._optimizer, self._comm, self._mesh, self._splits
        )

    def _lay_out(self) -> tuple[ShardMesh | None, TensorParts | None]:
        """Options --recompute, --shard and --tp: changes the model; returns the mesh of a model that several ranks share, and how
        those of a tensor group do."""
        options, comm, model = self.options, self._comm, self._model
        shards = shards_of(options, comm.size)
        if options.recompute:
            for layer in layer_list(model):
                recompute.mark(layer, preserve_rng_state=True)
            recompute.in_place(model)
        if shards == options.tp == 1:
            give_memory([model], comm.device)
            model.to(comm.device)
            return None, None
        mesh = make_mesh(comm.device, comm.rank, comm.size, shards, options.tp)
        parts = self._chosen.split(mesh.tensor, comm) if mesh.tensor else None
        if shards == 1:
            give_memory([model], comm.device)
            model.to(comm.device)
            return mesh, parts
        half = torch.bfloat16 if options.precision == "bf16" else None
        if any(parameter.is_meta for parameter in model.parameters()):
            shard(model, layer_units(model), mesh, half)
            give_shares_memory(model, comm.device)
            return mesh, parts
        model.to(comm.device)
        self._first_weights = comm.from_leader(self._chosen.first_weights, LONG_WORK) or ""
        send_weights(model, comm)
        shard(model, layer_units(model), mesh, half)
        return mesh, parts

    def start_from_scratch(self) -> None:
        """Rank 0 reads the weights to start from. `make_stepper` creates DDP, which sends them to all ranks; of a sharded model
        each rank gets its share. An embedded model that is sharded has them already."""
        if self._first_weights is None:
            self._read_first_weights()
        if self._first_weights:
            self._comm.say(self._first_weights)

    def _read_first_weights(self) -> None:
        if self._mesh:
            self._first_weights = self._chosen.fill_shares(self._comm)
        else:
            self._first_weights = self._comm.from_leader(self._chosen.first_weights, LONG_WORK)

    def introduction(self) -> list[str]:
        options = self.options
        return [
            self._data.line,
            f"model: {self._chosen.name}, {self._weights} weights, {numerics(options, self._comm.device)}",
            f"global batch: {self.batching.global_batch} = {options.batch_size} per {self.replica} x "
            f"{self.batching.replicas} {self.replica}s x {options.accumulation} passes",
            *self._layout_lines(),
        ]

    def _layout_lines(self) -> list[str]:
        mesh, tp = self._mesh, self.options.tp
        if mesh is None:
            return []
        lines = []
        if self._parts:
            logits = "all words" if self._parts.words is None else f"1 / {tp} of the words"
            lines.append(f"tensor parallel: {tp} ranks compute each layer together; a rank has the logits of {logits}")
        if mesh.shards > 1:
            lines.append(f"sharded: over {mesh.shards} {self.replica}s, {mesh.replicas} replicas")
        return lines

    def make_stepper(self) -> DataParallelSteps:
        mesh, parts = self._mesh, self._parts
        kind = ShardedSteps if mesh and mesh.shards > 1 else DataParallelSteps
        gradients = TensorGradients(dict(self._model.named_parameters()), mesh, parts) if mesh and parts else None
        words = parts.words if parts else None
        scoring = split_scoring(SplitLogits(mesh.tensor, words)) if words and mesh and mesh.tensor else PER_LABEL
        stepper = kind(self._model, self._optimizer, self._comm, self.options, gradients, scoring)
        stepper.warm_up(*self._data.example(self.options.batch_size, self._comm.device))
        return stepper

    def model_state(self) -> dict[str, torch.Tensor]:
        return gathered_weights(self._model, self._mesh, self._splits) if self._mesh else self._model.state_dict()

    def description(self) -> Mapping[str, object]:
        return job_description(self._chosen, self._data)

    def write_model(self, state: dict[str, torch.Tensor], description: Mapping[str, object], folder: Path) -> Path:
        return self._chosen.write(state, description, folder)


def _check_compiler() -> None:
    if not any(shutil.which(name) for name in ("c++", "g++", "gcc", "clang")):
        raise UserError("option --compile: torch.compile needs a C++ compiler; fix: install g++, or --compile False")


def send_weights(model: nn.Module, comm: Communicator) -> None:
    """Copies rank 0's weights and buffers into the model of every rank, tensor by tensor. Call it on all ranks."""
    for tensor in model.state_dict().values():
        whole = tensor.detach().cpu().contiguous()
        comm.broadcast(whole.view(-1).view(torch.uint8), 0)
        tensor.copy_(whole)
