"""One turn of a contender of bench/models.py on this rank: a job of `--steps` steps on a Hugging Face folder.

`ours` is the entrypoint as it is. `trainer` is transformers.Trainer, with accelerate's DDP or FSDP2. `bare` is the loop of
torch's tutorials with DDP or `fully_shard`, each layer a unit, which gets ready batches; in a tensor group it is the loop of
transformers' documentation, with the model as `from_pretrained` splits it. `parallelized` splits it by torch's `parallelize_module`
and computes the loss on split logits, as torch's tutorial of tensor parallelism and torchtitan do. All have the same weights,
samples, order, optimizer and rate; each reports the loss of a step as the mean over all tokens of all ranks.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from algorun.inside.stop_flag import StopFlag
from algorun_train.data import token_data
from algorun_train.data.sampler import Batching, permutation, walk
from algorun_train.jobs import ddp_job
from algorun_train.loop.data_parallel_steps import DataParallelSteps
from algorun_train.loop.learning_rate import set_learning_rate
from algorun_train.loop.optimizer import build_optimizer
from algorun_train.models.folder_model import prepare_transformers
from algorun_train.options.folders import find_folders
from algorun_train.options.job_options import DdpJobOptions
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.world import read_world

WARM_UP = 10  # steps that do not count as time; their losses do


@dataclass
class Notes:
    """What a turn leaves: stamps at the begin of each step, and each step's loss on this rank as a share of the mean."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    losses: list[torch.Tensor] = field(default_factory=list)

    def stamp(self) -> None:
        self.wall.append(time.perf_counter())
        self.cpu.append(time.process_time())

    def per_step(self, steps: int) -> tuple[float, float]:
        """Seconds and CPU seconds of a step: one whole turn of the loop. Ranks that agree on a stop may do further steps."""
        last = steps - 1
        return tuple((times[last] - times[WARM_UP]) / (last - WARM_UP) for times in (self.wall, self.cpu))


@dataclass(frozen=True)
class Turn:
    """What a turn computes. `sharded`: over all ranks; `tensor`: all ranks compute each layer together."""

    options: DdpJobOptions
    steps: int
    sharded: bool
    tensor: bool = False

    def batches(self, comm: Communicator) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
        """This rank's inputs and labels, as the entrypoint gives them to its steps, and the labels of all ranks."""
        options = self.options
        tokens = token_data.load(
            options, find_folders(options, os.environ, Path.is_dir), comm, Path(options.model or "")
        )
        replica, replicas = (0, 1) if self.tensor else (comm.rank, comm.size)
        batching = Batching(options.batch_size, 1, replica, replicas)
        order = permutation(tokens.train_count, options.seed, 0)
        steps = walk(order, 0, batching, 0, tokens.train.labels)
        for _, step in zip(range(self.steps), steps, strict=False):
            yield *tokens.train.read(step.pieces[0].indices), step.weight


def ours(turn: Turn, notes: Notes) -> None:
    stop, plain = StopFlag(), DataParallelSteps.step

    def step(self: DataParallelSteps, batches: list, total: int, rate: float, number: int) -> torch.Tensor:
        notes.stamp()
        losses = plain(self, batches, total, rate, number)
        notes.losses.append(losses / total)
        stop.wanted = number >= turn.steps
        return losses

    DataParallelSteps.step = step
    ddp_job.run(turn.options, stop)


def bare(turn: Turn, notes: Notes) -> None:
    with joined(read_world(os.environ)) as comm:
        (_bare_tensor if turn.tensor else _bare)(turn, notes, comm)


def _bare(turn: Turn, notes: Notes, comm: Communicator) -> None:
    plain = folder_weights(turn)
    if turn.sharded:
        for unit in (plain.model.embed_tokens, *plain.model.layers, plain.model.norm, plain.lm_head):
            fully_shard(unit)
        fully_shard(plain)
    model = plain if turn.sharded else DistributedDataParallel(plain)
    optimizer = optimizer_of(turn, plain)
    for inputs, labels, total in list(turn.batches(comm)):
        notes.stamp()
        logits = model(input_ids=inputs, use_cache=False).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / total
        optimizer.zero_grad()
        (loss * comm.size).backward()
        optimizer.step()
        notes.losses.append(loss.detach())


def _bare_tensor(turn: Turn, notes: Notes, comm: Communicator) -> None:
    prepare_transformers()
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    layout = DistributedConfig(tp_size=comm.size)
    model = AutoModelForCausalLM.from_pretrained(
        turn.options.model, dtype=torch.float32, distributed_config=layout
    ).train()
    _train_split(turn, notes, comm, model, contextlib.nullcontext)


def parallelized(turn: Turn, notes: Notes) -> None:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        loss_parallel,
        parallelize_module,
    )

    layer = {f"self_attn.{name}": ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj")}
    layer |= {"self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()}
    layer |= {"mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel()}
    ends = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    with joined(read_world(os.environ)) as comm:
        model, mesh = folder_weights(turn), init_device_mesh("cpu", (comm.size,))
        parallelize_module(model, mesh, ends)
        for each in model.model.layers:
            parallelize_module(each, mesh, layer)
        _train_split(turn, notes, comm, model, loss_parallel)


def _train_split(
    turn: Turn, notes: Notes, comm: Communicator, model: nn.Module, around: Callable[[], AbstractContextManager]
) -> None:
    """Steps of a model of which each rank has a part. `around`: the loss and the backward pass."""
    # torch has no optimizer step for DTensors and plain tensors at once.
    kinds = [[p for p in model.parameters() if isinstance(p, DTensor) == split] for split in (True, False)]
    optimizers = [build_optimizer(turn.options, kind) for kind in kinds]
    for optimizer in optimizers:
        set_learning_rate(optimizer, turn.options.lr)
    for inputs, labels, total in list(turn.batches(comm)):
        notes.stamp()
        logits = model(input_ids=inputs, use_cache=False).logits
        with around():
            loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / total
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
        loss = loss.detach()
        loss = loss.full_tensor() if isinstance(loss, DTensor) else loss
        for optimizer in optimizers:
            optimizer.step()
        notes.losses.append(loss / comm.size)  # all ranks have the same


def trainer(turn: Turn, notes: Notes) -> None:
    os.environ["ACCELERATE_USE_CPU"] = "1"
    with joined(read_world(os.environ)) as comm:
        _trainer(turn, notes, comm)


def _trainer(turn: Turn, notes: Notes, comm: Communicator) -> None:
    from transformers import Trainer, TrainingArguments

    own = [row for inputs, labels, _ in turn.batches(comm) for row in zip(inputs, labels, strict=True)]
    # accelerate gives every batch of `batch_size` to the next rank: the rows of all ranks, batch by batch.
    everyone: list = [None] * comm.size
    dist.all_gather_object(everyone, own)
    size = turn.options.batch_size
    rows = [row for at in range(0, len(own), size) for each in everyone for row in each[at : at + size]]

    class Job(Trainer):
        def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
            self.optimizer = optimizer_of(turn, self.model)
            return self.optimizer

        def _get_train_sampler(self, *_: object) -> torch.utils.data.Sampler:
            return torch.utils.data.SequentialSampler(rows)

        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            if turn.sharded:
                _shard_on_cpus(self.accelerator, self.args.fsdp_plugin_args)
                self.is_fsdp_enabled = True

        def training_step(self, *given: object, **named: object) -> torch.Tensor:
            assert isinstance(self.model, FSDPModule) == turn.sharded
            notes.stamp()
            loss = super().training_step(*given, **named)
            notes.losses.append(loss / comm.size)
            return loss

    layers = {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "cpu_ram_efficient_loading": False}
    arguments = TrainingArguments(
        output_dir=str(turn.options.output_dir),
        max_steps=turn.steps,
        per_device_train_batch_size=size,
        learning_rate=turn.options.lr,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        save_strategy="no",
        logging_steps=turn.options.log_interval,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        ddp_backend="gloo",
        remove_unused_columns=False,
        seed=turn.options.seed,
        **({"fsdp": True, "fsdp_config": layers} if turn.sharded else {}),
    )
    Job(folder_weights(turn), arguments, train_dataset=rows, data_collator=_collate).train()


def _shard_on_cpus(accelerator: object, plugin: dict[str, object]) -> None:
    """accelerate ignores FSDP without a GPU, and says nothing. Its code for FSDP2 works on CPUs once its state names FSDP."""
    from accelerate import DistributedType, FullyShardedDataParallelPlugin, PartialState

    PartialState().distributed_type = DistributedType.FSDP
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(**plugin)


def _collate(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Labels stand where they are predicted, as ours do: `shift_labels` says that to transformers."""
    inputs, labels = (torch.stack(column) for column in zip(*rows, strict=True))
    return {"input_ids": inputs, "labels": labels, "shift_labels": labels}


def folder_weights(turn: Turn) -> nn.Module:
    from transformers import AutoModelForCausalLM

    prepare_transformers()
    return AutoModelForCausalLM.from_pretrained(turn.options.model, dtype=torch.float32).train()


def optimizer_of(turn: Turn, model: nn.Module) -> torch.optim.Optimizer:
    optimizer = build_optimizer(turn.options, model.parameters())
    set_learning_rate(optimizer, turn.options.lr)
    return optimizer


LOOPS: dict[str, Callable[[Turn, Notes], None]] = {
    "algorun ddp": ours,
    "transformers.Trainer": trainer,
    "bare loop": bare,
    "parallelize_module": parallelized,
}
