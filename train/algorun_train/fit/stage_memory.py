"""What the heaviest rank of the job `pipeline` holds at the peak of a step, computed without memory and without other ranks.

One microbatch passes the whole model, with tensors that have shapes but no memory. What lives is counted layer by layer. Then the
job's own partitioner chooses the stages, of whole layers and with operations in the place of seconds, and the job's schedule says
how many microbatches each stage holds when.
"""

import bisect
import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from algorun_train.common.errors import UserError
from algorun_train.loop.losses import PER_LABEL
from algorun_train.models.folder_config import ModelFolder
from algorun_train.models.folder_model import FolderModule
from algorun_train.options.for_parallel import partition_options
from algorun_train.options.job_options import PipelineJobOptions
from algorun_train.options.mp_parameters import MpParameters
from algorun_train.options.pipeline_layout import lay_out
from algorun_train.parallel.layout.layout import Layout
from algorun_train.parallel.model.precision import AUTOCAST
from algorun_train.parallel.model.trees import leaves
from algorun_train.parallel.partition.cost_model import CostModel
from algorun_train.parallel.partition.costs import Begins, SegmentProfile
from algorun_train.parallel.partition.layers_to_stages import choose_stages
from algorun_train.parallel.partition.memory import MemoryModel, moments_of, preallocated
from algorun_train.parallel.run.gradient_sum import BUCKET_BYTES, buckets_of
from algorun_train.parallel.schedules import Action, find
from algorun_train.parallel.shard.layer_units import layer_list

from .live_bytes import LiveBytes
from .step_memory import RankMemory, batch_of, give_fake_memory, without_memory

OPERATIONS_PER_S = 1e12  # any number: stages are chosen by the ratios of their times


def _grouped_product(
    left: Sequence[int], _: Sequence[int], *__: object, out_shape: Sequence[int], **___: object
) -> int:
    return 2 * math.prod(out_shape) * left[-1]


def _attention(query: Sequence[int], key: Sequence[int], *_: object, **__: object) -> int:
    return 4 * math.prod(query) * key[-2]


# Operations that torch 2.13 does not count: a layer of experts would count less than a head, and so would attention on a CPU.
UNKNOWN_TO_TORCH = {
    torch.ops.aten._grouped_mm: _grouped_product,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
}


@dataclass(slots=True)
class _Layers:
    """What one microbatch has made in each layer. The first one has what comes before it as well, the last one what follows."""

    live: LiveBytes
    count: int
    marks: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])  # changes counted when a layer's turn began
    order: list[int] = field(default_factory=lambda: [0])  # of the forward passes
    operations: list[int] = field(default_factory=list)  # counted when each forward pass began
    entry: list[int] = field(default_factory=lambda: [0])  # bytes of what each layer gets from the one before
    users: dict[nn.Parameter, set[int]] = field(default_factory=dict)
    beside: int = 0  # bytes that all layers get, such as a mask: each stage makes them itself
    forward_end: int = 0

    def turn(self, layer: int) -> None:
        self.marks.append((self.live.changes, layer))

    def layer_of(self, change: int) -> int:
        """The layer whose turn it was at this change."""
        return self.marks[bisect.bisect_right(self.marks, change, key=lambda mark: mark[0]) - 1][1]

    def begins(self, layer: int, arguments: Iterable[object], operations: int) -> None:
        """The forward pass of a layer but the first begins."""
        self.turn(layer)
        self.order.append(layer)
        self.operations.append(operations)
        tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
        received = [each for each in tensors if each.requires_grad]
        self.entry.append(sum(each.nbytes for each in received))
        self.beside = max(self.beside, sum(each.nbytes for each in tensors if not each.requires_grad))
        for each in received[:1]:
            each.register_hook(lambda _: self.turn(layer - 1))  # its gradient ends the layer's backward pass


@dataclass(frozen=True, slots=True)
class _Stage:
    """Bytes of a stage. `held`: of one microbatch between its passes; `most`: while one is computed; `buffers`: received."""

    weights: int
    gradients: int
    buffers: int
    held: int
    most: int
    bucket: int


def stages_memory(
    folder: ModelFolder, module: FolderModule, options: PipelineJobOptions, alone: bool = False
) -> tuple[RankMemory, Begins]:
    """What the rank of a pipeline of `options.pp` ranks holds that holds most, and the first layer of each stage. `alone`: it is the
    job's only pipeline.

    `module`: of `module_of`, which stays as it is. `options`: as the job has them, for this folder. Raises UserError for a model
    without a list of enough layers, for one whose step depends on values, and for options that are not computed ahead.
    """
    layout = _layout(options, alone)
    own = copy.deepcopy(module)
    layers = layer_list(own)
    if len(layers) < layout.stages:
        raise UserError(
            f"option --pp: {layout.stages} stages of {folder.architecture} with {len(layers)} layers; allowed: at most as many, "
            "where the memory is computed ahead; fix: a smaller one"
        )
    with without_memory(folder) as live:
        made = _one_microbatch(own, layers, options, folder, layout, live)
    if made.order != list(range(len(layers))):
        raise UserError(
            f"{folder.source}: {folder.path}: {folder.architecture} does not call its layers once each and in order; allowed, where "
            "memory is computed ahead: models that do; fix: `pipeline --profile-only`"
        )
    return _heaviest(made, own, options, folder, layout)


def _layout(options: PipelineJobOptions, alone: bool) -> Layout:
    for name, why in (("tp", " with stages"), ("shard", " with stages"), ("mp_parameters", "")):
        value = getattr(options, name)
        if value not in (1, "1", None):
            raise UserError(
                f"option --{name.replace('_', '-')}: {value}{why} is not computed ahead; allowed: without it; "
                "fix: leave it out, or `pipeline --profile-only` on such a host"
            )
    if options.pp is None:
        raise UserError("option --pp: not given; allowed: the number of stages; fix: --pp 2")
    if find(options.schedule).experimental:
        raise UserError(
            f"option --schedule: {options.schedule}, which splits the backward pass, is not computed ahead; allowed: 1f1b, gpipe, "
            "interleaved; fix: one of them, or `pipeline --profile-only` on such a host"
        )
    return lay_out(options, MpParameters(), options.pp * (1 if alone else 2), torch.__version__)


def _one_microbatch(
    module: nn.Module,
    layers: Sequence[nn.Module],
    options: PipelineJobOptions,
    folder: ModelFolder,
    layout: Layout,
    live: LiveBytes,
) -> _Layers:
    """A forward and a backward pass of a microbatch, as each but the first of a step: the gradients are there already."""
    give_fake_memory(module)
    batch = batch_of(layout.microbatch, options, folder)
    for each in module.parameters():
        each.grad = torch.zeros_like(each) if each.requires_grad else None
    made = _Layers(live, len(layers))
    made.marks = [(live.changes, 0)]
    counter = FlopCounterMode(display=False, custom_mapping=UNKNOWN_TO_TORCH)
    for number, layer in enumerate(layers[1:], start=1):
        layer.register_forward_pre_hook(_beginning(made, number, counter), with_kwargs=True)
    for part in module.modules():
        if weights := list(part.parameters(recurse=False)):
            part.register_forward_pre_hook(_using(made, weights))
    module.train()
    dtype = AUTOCAST[options.precision]
    with counter:
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            output = module(batch.inputs)
        loss = PER_LABEL.loss(output, batch.labels)
        made.forward_end = live.changes
        made.operations.append(counter.get_total_flops())
        loss.backward()
    del output, loss  # not before: torch's stage holds its result until its backward pass is over
    return made


def _beginning(made: _Layers, number: int, counter: FlopCounterMode) -> Callable[..., None]:
    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # Any: a layer's own arguments
        made.begins(number, leaves([args, kwargs]), counter.get_total_flops())

    return hook


def _using(made: _Layers, weights: Sequence[nn.Parameter]) -> Callable[..., None]:
    def hook(*_: object) -> None:
        for each in weights:
            made.users.setdefault(each, set()).add(made.order[-1])

    return hook


def _heaviest(
    made: _Layers, module: nn.Module, options: PipelineJobOptions, folder: ModelFolder, layout: Layout
) -> tuple[RankMemory, Begins]:
    partition = partition_options(options, MpParameters())
    model = MemoryModel(partition.moments, preallocated(torch.__version__), options.recompute)
    costs = CostModel(_profiles(made, module), layout.shape, model)
    chosen = choose_stages(costs, partition.optimize, partition.limit_bytes)
    if chosen is None:
        raise UserError(
            f"option --memory-limit-mb: {options.memory_limit_mb}; no {layout.stages} stages of {folder.architecture} are within it; "
            "allowed: more; fix: leave it out, or a larger --pp"
        )
    ends = (*chosen.begins[1:], made.count)
    stages = [_stage(made, module, begin, end, model, layout) for begin, end in zip(chosen.begins, ends, strict=True)]
    moments = moments_of(options.optimizer, options.momentum)
    batch = _batch_bytes(options, folder)
    ranks = []
    for order in costs.orders:
        numbers = sorted({action.stage for action in order})
        weights = sum(stages[number].weights for number in numbers)
        last = sum(stages[number].gradients for number in numbers)
        held = weights + moments * last
        rest = sum(stages[number].buffers for number in numbers) + (batch if 0 in numbers else 0)
        gradients, activations = _peak(order, stages)
        bucket = max(stages[number].bucket for number in numbers) if layout.grid.dp > 1 else 0
        if last + bucket > gradients + activations:
            gradients, activations = last, bucket
        ranks.append(RankMemory(weights, held - weights, gradients, 0, rest + activations))
    return max(ranks, key=lambda each: each.peak), chosen.begins


def _peak(order: Sequence[Action], stages: Sequence[_Stage]) -> tuple[int, int]:
    """Bytes of gradients and of what the passes hold, at the moment of a step at which a rank holds most."""
    begun: set[int] = set()  # stages that have gradients
    held = 0
    peaks = []
    for action in order:
        stage = stages[action.stage]
        gradients = sum(stages[number].gradients for number in begun)
        if action.kind == "F":
            held += stage.held
            peaks.append((gradients, held))
        else:
            peaks.append((gradients, held - stage.held + stage.most))
            held -= stage.held
            begun.add(action.stage)
            peaks.append((sum(stages[number].gradients for number in begun), held))
    return max(peaks, key=sum)


def _profiles(made: _Layers, module: nn.Module) -> list[SegmentProfile]:
    names = {weight: name for name, weight in module.named_parameters()}
    operations = [0, *made.operations]
    found = []
    for number, (before, after) in enumerate(pairwise(operations)):
        own = [weight for weight in names if number in _users(made, weight)]
        forward = (after - before) / OPERATIONS_PER_S
        shared = tuple((names[each], each.nbytes) for each in own if len(_users(made, each)) > 1)
        size = sum(each.nbytes for each in own)
        saved = _saved(made, number, number + 1)
        name = f"layer {number}"
        found.append(SegmentProfile(name, (name,), forward, 2 * forward, saved, size, made.entry[number], shared))
    return found


def _users(made: _Layers, weight: nn.Parameter) -> set[int]:
    return made.users.get(weight) or {0}


def _stage(made: _Layers, module: nn.Module, begin: int, end: int, model: MemoryModel, layout: Layout) -> _Stage:
    """Layers begin .. end - 1."""
    span = set(range(begin, end))
    own = [each for each in module.parameters() if _users(made, each) & span]
    trained = [each for each in own if each.requires_grad]
    entry = made.entry[begin]
    leaving = made.entry[end] if end < made.count else 0
    made_here = made.beside if begin else 0
    received = 0 if model.preallocated else entry
    most = made.live.most(lambda change: made.layer_of(change) in span, made.marks[0][0])
    most += made_here + received + leaving  # torch's stage holds its result until its backward pass is over
    saved = _saved(made, begin, end) + made_here + received
    return _Stage(
        weights=sum(each.nbytes for each in own),
        gradients=sum(each.nbytes for each in trained),
        buffers=model.buffers(entry, leaving, layout.microbatches),
        held=received if model.recompute else saved,
        most=most,
        bucket=max((sum(each.nbytes for each in run) for run in buckets_of(trained, BUCKET_BYTES)), default=0),
    )


def _saved(made: _Layers, begin: int, end: int) -> int:
    """Bytes of these layers that live between the passes."""
    return made.live.alive(lambda change: begin <= made.layer_of(change) < end, made.marks[0][0], made.forward_end)


def _batch_bytes(options: PipelineJobOptions, folder: ModelFolder) -> int:
    """Of one batch: inputs and labels of all microbatches."""
    if folder.images is None:
        return 2 * 8 * options.batch_size * (options.context or 1)
    return 4 * options.batch_size * (3 * folder.images.side**2 + 2)
