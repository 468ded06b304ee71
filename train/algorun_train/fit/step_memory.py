"""What a rank of the job `ddp` holds at the peak of a step, computed without memory and without other ranks.

The job's own code makes a step with tensors that have shapes but no memory (torch's FakeTensorMode). FSDP2 shards the
model itself, over ranks that do not exist: torch's process group `fake` answers every collective at once. What lives at the peak
is then counted, not estimated.
"""

import contextlib
import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from algorun_train.common.errors import UserError
from algorun_train.data.batch import Batch
from algorun_train.jobs.lora_model import lora_spec
from algorun_train.loop.data_parallel_steps import DataParallelSteps
from algorun_train.loop.losses import PER_LABEL, split_scoring
from algorun_train.loop.optimizer import build_optimizer
from algorun_train.loop.sharded_steps import ShardedSteps
from algorun_train.models import lora
from algorun_train.models.folder_classes import skeleton
from algorun_train.models.folder_config import ModelFolder
from algorun_train.models.folder_meta import build_on_meta
from algorun_train.models.folder_model import INSIDE, FolderModule, head_names
from algorun_train.models.tensor_plan import plans_of, split_model, with_split_logits
from algorun_train.options.job_options import DdpJobOptions, ModelJobOptions
from algorun_train.parallel.model import recompute
from algorun_train.parallel.model.memory import give_memory
from algorun_train.parallel.shard.layer_units import layer_list, layer_units
from algorun_train.parallel.shard.sharded_model import ShardMesh, TensorAxis, local, make_mesh, shard
from algorun_train.parallel.shard.sharded_model import give_memory as give_shares_memory
from algorun_train.parallel.shard.split import TensorParts
from algorun_train.parallel.shard.split_logits import SplitLogits
from algorun_train.parallel.shard.tensor_gradients import TensorGradients
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.world import World

from .live_bytes import OTHER, LiveBytes

CPU = torch.device("cpu")  # a CUDA build and a CPU build count the same: nothing is computed
KERNELS = torch.library.Library("aten", "IMPL")  # keeps what is added as long as the process lives
WEIGHTS, MOMENTS, GRADIENTS, GATHERED = "weights", "moments", "gradients", "gathered"


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of a rank's tensors at the peak of a step: its share of the weights and of the optimizer's moments, gradients, whole
    weights of the units that compute (`gathered`), and the rest: activations and buffers."""

    weights: int
    moments: int
    gradients: int
    gathered: int
    activations: int

    @property
    def peak(self) -> int:
        """All of it."""
        return self.weights + self.moments + self.gradients + self.gathered + self.activations


@dataclass(frozen=True, slots=True)
class _Others:
    """The ranks beside this one, which do not exist: its mesh, how its tensor group shares weights, and how many ranks there are."""

    mesh: ShardMesh | None
    parts: TensorParts | None
    ranks: int


class _ReplicaSteps(DataParallelSteps):
    """Steps with gradients as DistributedDataParallel keeps them, also of one rank under a launcher. Buckets have their memory all
    the time, and the last pass of a step copies there what a backward pass makes; those before it add up outside of them. torch's
    own reducer is C++ and takes no tensors without memory. The only tensor group of a job has none."""

    buckets: Mapping[torch.Tensor, torch.Tensor] = MappingProxyType({})

    def _wrap(self, model: nn.Module) -> tuple[nn.Module, Callable[[], contextlib.AbstractContextManager[object]]]:
        if self._tensor and self._replicas == 1:
            return model, contextlib.nullcontext
        trained = [each for each in model.parameters() if each.requires_grad]
        self.buckets = {each: torch.empty_like(each, requires_grad=False) for each in trained}
        self._exchanges = True
        for each in trained:
            each.register_post_accumulate_grad_hook(self._keep)
        return model, self._without_exchange

    def _keep(self, weight: torch.Tensor) -> None:
        if self._exchanges and weight.grad is not None:
            bucket = self.buckets[weight]
            bucket.copy_(weight.grad)
            weight.grad = bucket

    @contextlib.contextmanager
    def _without_exchange(self) -> Iterator[None]:
        self._exchanges = False
        try:
            yield
        finally:
            self._exchanges = True


def module_of(folder: ModelFolder, options: ModelJobOptions) -> FolderModule:
    """The model as the job builds it, with adapters if it trains those alone, without memory; an image classifier with as many
    classes as the folder's head has. Raises UserError."""
    classes = _class_names(folder)
    module = build_on_meta(folder, classes)
    if isinstance(options, DdpJobOptions) and options.lora:
        lora.prepare_peft()
        spec, head = lora_spec(options), set[str]() if classes is None else head_names(folder, classes)
        targets = lora.choose_targets(module.model, folder, spec, head)
        lora.add_adapters(module, folder, spec, targets, head, options.seed)
    return module


def rank_memory(
    folder: ModelFolder, module: FolderModule, options: DdpJobOptions, shards: int, alone: bool = False
) -> RankMemory:
    """What the first rank of a replica holds that is sharded over `shards` ranks, or tensor groups of `options.tp` ranks. `alone`: it
    is the job's only group. `module`: of `module_of`, which stays as it is. `options`: as the job has them, for this folder. No
    process group may exist. Raises UserError for a model whose step depends on values, such as one with whole experts (`--tp`),
    and for one that cannot be split."""
    own = copy.deepcopy(module)
    with _nobody(shards, options.tp) as mesh:
        parts = _split(own, folder, mesh.tensor) if mesh and mesh.tensor else None
        others = _Others(mesh, parts, (mesh.members if mesh else 1) * (1 if alone else 2))
        with without_memory(folder) as live:
            return _counted(own, options, others, live, batch_of(options.batch_size, options, folder))


@contextlib.contextmanager
def without_memory(folder: ModelFolder) -> Iterator[LiveBytes]:
    """Within its block tensors have shapes, and no memory, and count. Raises UserError for a step that depends on values."""
    with _shapes(), LiveBytes() as live:
        try:
            yield live
        except Exception as error:  # each operation has its own way to say that it needs values
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise UserError(
                f"{folder.source}: {folder.path}: a step of {folder.architecture} cannot be made without memory ({reason}); "
                "allowed: models whose steps depend on shapes alone, so none whose tokens travel to experts (--tp with whole experts); "
                "fix: run a step of the job, its log has peak_memory_mib"
            ) from error


def _shapes() -> FakeTensorMode:
    """Tensors without memory. An operation that cannot do without is refused, not computed."""
    # It would print tracebacks of what the error says in a line.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    # It computes in place, so it needs nothing; torch 2.13 has no form of it for tensors without memory.
    if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_fused_sgd_", "Meta"):
        KERNELS.impl("_fused_sgd_", lambda *_, **__: None, "Meta")
    # Of the product of experts torch's own form takes bfloat16 alone, while the CPU and the GPU multiply float32 as well.
    KERNELS.impl("_grouped_mm", _grouped_product, "Meta")
    return FakeTensorMode(allow_fallback_kernels=False, allow_non_fake_inputs=True)


def _grouped_product(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The shape of aten::_grouped_mm: rows of one factor, or columns that are summed over, belong to groups that `offs` ends."""
    shape: tuple[int, ...]
    if left.dim() == right.dim() == 2:
        assert offs is not None
        shape = (offs.size(0), left.size(0), right.size(1))
    elif left.dim() == 2:
        shape = (left.size(0), right.size(2))
    elif right.dim() == 2:
        shape = (left.size(1), right.size(1))
    else:
        shape = (left.size(0), left.size(1), right.size(2))
    return left.new_empty(shape, dtype=out_dtype or left.dtype)


def _class_names(folder: ModelFolder) -> list[str] | None:
    """None for a language model."""
    labels = folder.config.get("id2label")
    count = len(labels) if isinstance(labels, dict) else 2
    return [f"class {number}" for number in range(count)] if folder.images else None


def _split(module: FolderModule, folder: ModelFolder, axis: TensorAxis) -> TensorParts:
    """As the job does it, which also tries the plan: here nobody else is there. Raises UserError."""
    classes = _class_names(folder)
    plan, model = plans_of(folder, classes, axis.ranks)[0], skeleton(folder, classes)
    if folder.tokens:
        plan = with_split_logits(model, plan) or plan
    return split_model(module.model, plan, axis).inside(INSIDE)


@contextlib.contextmanager
def _nobody(shards: int, tensor: int) -> Iterator[ShardMesh | None]:
    """The mesh of one replica whose other ranks do not exist; None if there is nothing to share."""
    if shards == tensor == 1:
        yield None
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=shards * tensor)
    try:
        yield make_mesh(CPU, 0, shards * tensor, shards, tensor)
    finally:
        dist.destroy_process_group()


def _counted(module: nn.Module, options: DdpJobOptions, others: _Others, live: LiveBytes, batch: Batch) -> RankMemory:
    mesh, parts = others.mesh, others.parts
    if options.recompute:
        for layer in layer_list(module):
            recompute.mark(layer, preserve_rng_state=True)
        recompute.in_place(module)
    sharded = mesh is not None and mesh.shards > 1
    if mesh and sharded:
        shard(module, layer_units(module), mesh, torch.bfloat16 if options.precision == "bf16" else None)
        give_shares_memory(module, CPU)
    else:
        give_fake_memory(module)
    weights = list(module.parameters())
    live.mark((*weights, *module.buffers()), WEIGHTS)
    trained = [each for each in weights if each.requires_grad]
    comm = Communicator(World(0, others.ranks), CPU)  # not distributed: no rank is asked for anything
    gradients = TensorGradients(dict(module.named_parameters()), mesh, parts) if mesh and parts else None
    words = parts.words if parts else None
    scoring = split_scoring(SplitLogits(mesh.tensor, words)) if words and mesh and mesh.tensor else PER_LABEL
    kind = ShardedSteps if sharded else _ReplicaSteps
    stepper = kind(module, build_optimizer(options, weights), comm, options, gradients, scoring)
    if isinstance(stepper, _ReplicaSteps):
        live.mark(stepper.buckets.values(), GRADIENTS)
    optimizer = stepper.optimizer
    for each in trained:
        each.grad = torch.zeros_like(each)
    optimizer.step()  # it makes the moments
    optimizer.zero_grad()
    live.mark(_moments(optimizer), MOMENTS)
    optimizer.register_step_pre_hook(lambda *_: live.mark(_gradients(trained), GRADIENTS))
    since = live.changes
    stepper.train()
    stepper.step([batch] * options.accumulation, 1, 1e-3, 1)
    live.mark_resized(GATHERED)
    found = live.peak(since)
    return RankMemory(*(found.get(kind, 0) for kind in (WEIGHTS, MOMENTS, GRADIENTS, GATHERED, OTHER)))


def give_fake_memory(module: nn.Module) -> None:
    """Gives weights on the meta device, and buffers, memory that counts. Within the block of `without_memory`."""
    give_memory([module], CPU)
    for part in module.modules():
        part._buffers.update({name: each.clone() for name, each in part._buffers.items() if each is not None})


def _moments(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for state in optimizer.state.values():
        yield from (local(value) for value in state.values() if isinstance(value, torch.Tensor))


def _gradients(weights: Iterable[nn.Parameter]) -> Iterator[torch.Tensor]:
    return (each.grad for each in weights if each.grad is not None)


def batch_of(size: int, options: ModelJobOptions, folder: ModelFolder) -> Batch:
    """`size` samples. Within the block of `without_memory`."""
    if folder.images is None:
        tokens = torch.zeros(size, options.context or 1, dtype=torch.int64)
        return Batch(tokens, tokens.clone(), size)
    side = folder.images.side
    return Batch(torch.zeros(size, 3, side, side), torch.zeros(size, dtype=torch.int64), size)
