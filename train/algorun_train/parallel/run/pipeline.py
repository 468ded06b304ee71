"""`Pipeline`: this rank's stages, trained and evaluated with those of the other ranks as if the model lay on one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from algorun_train.common.activity import say_norms
from algorun_train.common.errors import UserError
from algorun_train.parallel import schedules
from algorun_train.parallel.model.memory import give_memory
from algorun_train.parallel.model.model_stages import ModelStages
from algorun_train.parallel.model.precision import AUTOCAST
from algorun_train.parallel.shard.sharded_model import SplitModel, Splits, gathered_state
from algorun_train.parallel.shard.sharded_model import give_memory as give_shares_memory
from algorun_train.parallel.shard.split import TensorParts, united
from algorun_train.parallel.shard.tensor_gradients import TensorGradients

from . import gradient_norm
from .forward import ForwardPasses
from .gradient_sum import GradientSum
from .microbatches import in_microbatches
from .options import RunOptions
from .process_groups import Axes
from .shared_weights import SharedWeight, SharedWeights, shared_weights
from .stage import Stage
from .torch_schedules import Loss, Recorder
from .training_passes import LossOf, TrainingPasses
from .weights import StageWeights

T = TypeVar("T")


class Pipeline:
    """This rank's stages of one model. Make it, and call its methods, on all ranks of the pipeline; those that need no
    other rank say so.

    It joins four parts: the passes of training, forward passes for evaluation, the weights, and the sums of gradients.

    Attributes:
        axes: this rank's place: `axes.dp_rank` is the number of its replica (0 to `axes.grid.dp` - 1), `axes.pp_rank` its
            place in the pipeline (0 to `axes.grid.pp` - 1), `axes.device` its device.
    """

    def __init__(
        self,
        model: ModelStages,
        axes: Axes,
        options: RunOptions,
        loss: Loss | None = None,
        beside: Pipeline | None = None,
        split: SplitModel | None = None,
    ) -> None:
        """`loss(output, target)` is the loss of one microbatch, on the last stage; None: every `run` has its own.

        The schedule of `options` says which stages this rank runs. With one rank per pipeline the microbatches are
        passes of plain accumulation. `beside` is a pipeline of the same weights for inputs of another signature: the new
        one shares its parameters, its buffers, and the sums of their gradients.
        Weights that have no memory (torch's meta device) get some; what is in it is undefined: fill `weights.tensors()`.
        If `axes` has a mesh, each rank holds shares of its stages' weights; those that have memory must be equal on all ranks.
        In a tensor group `split(model)` leaves each rank its part of the weights of a stage, which have no memory yet, and
        returns how; it is called with a copy of the whole model in which other stages have no weights.
        Raises UserError for recomputation with a schedule that splits the backward pass, and if `axes` has a mesh for a
        weight that several stages of a rank use.
        """
        if options.recompute:
            schedules.check_recompute(options.schedule)
        self.axes, self._options, self._loss = axes, options, loss
        rank_of_stage, boundaries = _ranks_of_stages(model, axes, options), model.boundaries()
        self._inputs, shared = boundaries[0], shared_weights(model)
        if axes.mesh:
            _check_shared(shared, rank_of_stage, "--shard" if axes.shard_mesh else "--tp")
        self.stages, parts = _stages_of_rank(model, rank_of_stage, axes, options, split)
        """this rank's stages by number, in the order of the model"""
        self.recorder = Recorder(axes.device)
        """times the computations of a step, once started"""
        self._training = TrainingPasses(self.stages, boundaries, axes, options, self.recorder)
        self._evaluation = ForwardPasses(self.stages, rank_of_stage, boundaries, axes)
        self.weights = StageWeights(self.stages, shared)
        """names, state dict and buffers"""
        if beside is None:
            named = dict(self.weights.named_parameters())
            self.shared_weights = SharedWeights(shared, rank_of_stage, axes, named)
            """the weights that several stages use"""
            self.gradients = GradientSum(
                named.values(),
                None if axes.shard_mesh else axes.dp_group,  # FSDP2 has averaged them
                self._countable_passes(),
                options.mean,
                self.shared_weights,
            )
            """sums this rank's gradients over the replicas"""
            self.splits = Splits(parts.splits, axes.tensor) if axes.tensor else None
            """the weights of which each rank of a tensor group has a part"""
            self._parts = TensorGradients(named, axes.mesh, parts) if axes.mesh and axes.tensor else None
        else:
            self.splits, self._parts = beside.splits, beside._parts
            self.shared_weights, self.gradients = beside.shared_weights, beside.gradients
            self.weights.take_buffers(beside.weights)

    @property
    def is_first(self) -> bool:
        """Whether this rank has the first stage, which takes the inputs."""
        return 0 in self.stages

    @property
    def is_last(self) -> bool:
        """Whether this rank has the last stage, whose output is the model's."""
        return self._evaluation.last in self.stages

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields each parameter of this rank once, under its name in the whole model. Needs no other rank."""
        return self.weights.named_parameters()

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yields the parameters of this rank, for an optimizer. Needs no other rank."""
        return (parameter for _, parameter in self.weights.named_parameters())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Returns parameters and buffers of this rank, under their names in the whole model. Needs no other rank."""
        return self.weights.state_dict()

    def whole_state(self) -> dict[str, torch.Tensor]:
        """`state_dict` with whole tensors. If several ranks share weights, on the ranks of the first pipeline only, and {} on all
        others; call it on all ranks then."""
        mesh, state = self.axes.mesh, self.weights.state_dict()
        return gathered_state(state, mesh, self.splits) if mesh else state

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Loads this rank's weights. Needs no other rank.

        Args:
            state: the state dict of the whole model, of which this rank takes its own weights.

        Raises:
            KeyError: for a name that is missing in it.
        """
        self.weights.load_state_dict(state)

    def train(self) -> None:
        """Sets training mode. Needs no other rank."""
        for stage in self.stages.values():
            stage.train()

    def eval(self) -> None:
        """Sets evaluation mode. Needs no other rank."""
        for stage in self.stages.values():
            stage.eval()

    def step(self, inputs: object, targets: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        """Forward and backward over one batch of B samples; gradients are then equal on all replicas.

        Call it on all ranks. All ranks of a pipeline get the same batch; each pipeline gets another one. B is the number
        of microbatches x their size.

        Args:
            inputs: nested like the example that the model was cut with: a tensor [B, ..], a tuple or a dictionary of them.
            targets: [B, ..].
            scale: gradients are those of `scale` x the sum of the losses of all microbatches of all replicas. By default
                they are those of the mean.

        Returns:
            The sum of the unscaled losses of this replica's microbatches, a scalar, on the rank with the last stage; 0
            on the others.

        Raises:
            UserError: for a batch of another shape.
        """
        loss, count = self._loss, self._options.microbatches
        assert loss is not None
        microbatches, labels = in_microbatches(inputs, targets, self._inputs, count)
        scale = 1 / (count * self.axes.grid.dp) if scale is None else scale
        return self.run(microbatches, lambda output, number: loss(output, labels[number]), scale)

    def run(
        self, microbatches: Sequence[Sequence[torch.Tensor]], loss: LossOf, scale: float, reduce: bool = True
    ) -> torch.Tensor:
        """Forward and backward over microbatches: the general form of `step`, and it returns the same.

        `microbatches[i]` are the tensors among the model's arguments of microbatch i; only the rank with the first stage
        needs them. `loss(output, i)` is called on the rank with the last stage, in the order of i. With `reduce` False
        (after `overlap(False)`) gradients are not summed over the replicas: a later step adds to them and sums them.
        """
        self.shared_weights.begin()
        # FSDP2 takes the mean over the pipelines.
        times = self.axes.grid.dp if self.axes.shard_mesh and not self._options.mean else 1
        total = self._training.run(microbatches, loss, scale * times)
        if reduce:
            self.gradients.finish()
            if self._parts:
                self._parts.add_up()
        return total

    def overlap(self, enabled: bool) -> None:
        """Whether gradients travel to the other replicas while the last backward pass still runs; on by default."""
        self.gradients.passes = self._countable_passes() if enabled else None

    def evaluate(self, inputs: object, targets: torch.Tensor, score: Loss) -> torch.Tensor | None:
        """Forward passes over one batch, without gradients. Call it on all ranks of the pipeline.

        Args:
            inputs: as in `step`.
            targets: as in `step`.
            score: `score(output, target)` of one microbatch, a tensor of any shape.

        Returns:
            The sum of the scores of all microbatches, in their shape; None on ranks without the last stage.

        Raises:
            UserError: for a batch of another shape.
        """
        microbatches, labels = in_microbatches(inputs, targets, self._inputs, self._options.microbatches)
        autocast = AUTOCAST[self._options.precision]
        scores = self.forward(microbatches, lambda output, number: score(output, labels[number]), autocast)
        return torch.stack(scores).sum(0) if scores else None

    def forward(
        self,
        microbatches: Sequence[Sequence[torch.Tensor]],
        use: Callable[[Any, int], T],  # Any: the model's output, of the user's own type
        autocast: torch.dtype | None,
    ) -> list[T]:
        """use(output, i) of each microbatch, on the rank with the last stage; an empty list elsewhere. No gradients.

        `microbatches` as in `run`, of any number, which is the same on all ranks. The stages compute under `autocast`
        (None: none), which may differ from that of training but is the same on all ranks.
        """
        other = autocast != AUTOCAST[self._options.precision]
        return self._evaluation.run(microbatches, use, autocast, other_types=other)

    def everywhere(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the result of `step`, a scalar, on all ranks of this pipeline. Call it on all of them.

        Args:
            loss: what `step` returned on this rank.
        """
        if self.axes.pp_group is not None:
            loss = loss.detach().clone()
            dist.all_reduce(loss, group=self.axes.pp_group)
        return loss

    def clip(self, norm: float) -> torch.Tensor:
        """Scales all gradients of the pipeline so that their norm is at most `norm`. Call it on all ranks of the pipeline, and of
        their tensor groups.

        Args:
            norm: the largest 2-norm over the gradients of all stages, above 0. A shared weight counts once.

        Returns:
            The norm before, a float64 scalar, equal on all ranks of the pipeline.
        """
        owned = [p for p in self.shared_weights.owned(self.parameters()) if p.grad is not None]
        norms = gradient_norm.of_each([p.grad for p in owned if p.grad is not None], 2.0)
        say_norms(owned, norms)
        total = self._over_stages(owned, norms, 2.0)
        gradient_norm.scale_to([p.grad for p in self.parameters() if p.grad is not None], norm, total)
        return total

    def norm(self, parameters: Iterable[torch.Tensor], order: float = 2.0) -> torch.Tensor:
        """The norm, a float64 scalar, of the gradients of the parameters that all ranks of the pipeline give. A shared
        weight counts once."""
        owned = [p for p in self.shared_weights.owned(parameters) if p.grad is not None]
        norms = gradient_norm.of_each([p.grad for p in owned if p.grad is not None], order)
        return self._over_stages(owned, norms, order)

    def _over_stages(self, owned: Sequence[torch.Tensor], norms: Sequence[torch.Tensor], order: float) -> torch.Tensor:
        if self._parts is None:
            return gradient_norm.over_stages(norms, self.axes, order)
        found: dict[bool, list[torch.Tensor]] = {False: [], True: []}
        for weight, norm in zip(owned, norms, strict=True):
            found[self._parts.is_split(weight)].append(norm)
        return gradient_norm.over_stages(found[False], self.axes, order, found[True])

    def take_buffers(self, other: Pipeline) -> None:
        """Replaces the buffers by those of a pipeline of the same stages: both then have the same tensors."""
        self.weights.take_buffers(other.weights)

    def receive_buffers(self) -> list[torch.Tensor]:
        """The buffers that this rank's stages receive into, once there was a step."""
        return self._training.receive_buffers()

    def _countable_passes(self) -> int | None:
        """Backward passes per step that add to every gradient; None for a schedule that splits its backward passes."""
        split = self.axes.grid.pp > 1 and schedules.find(self._options.schedule).experimental
        return None if split else self._options.microbatches


def _ranks_of_stages(model: ModelStages, axes: Axes, options: RunOptions) -> tuple[int, ...]:
    ranks, stages = axes.grid.pp, len(model.begins)
    return schedules.rank_of(options.schedule, ranks, stages // ranks) if ranks > 1 else (0,) * stages


def _check_shared(shared: Sequence[SharedWeight], rank_of_stage: Sequence[int], option: str) -> None:
    """Raises UserError for a weight of several stages of one rank: FSDP2, or a tensor group, would make two of it."""
    for each in shared:
        ranks = [rank_of_stage[stage] for stage in each.stages]
        if len(set(ranks)) < len(ranks):
            raise UserError(
                f"option {option}: weight {each.name} is used by several stages of one rank; allowed: by one stage of a rank; "
                f"fix: --schedule 1f1b, or {option} 1"
            )


def _stages_of_rank(
    model: ModelStages, rank_of_stage: Sequence[int], axes: Axes, options: RunOptions, split: SplitModel | None
) -> tuple[dict[int, Stage], TensorParts]:
    """The stages of this rank, and what it has parts of."""
    found: list[TensorParts] = []

    def in_parts(copied: nn.Module) -> None:
        assert split is not None
        found.append(split(copied))

    change = in_parts if split else None
    spans, outputs = list(zip(model.begins, model.ends, strict=True)), model.boundaries()[1:]
    last = len(spans) - 1
    stages = {
        index: Stage(
            model.cutting.stage(*spans[index], change), outputs[index], axes.device.type, options, sends=index < last
        )
        for index, rank in enumerate(rank_of_stage)
        if rank == axes.pp_rank
    }
    mesh = axes.shard_mesh
    if mesh is None:
        give_memory(stages.values(), axes.device)
    for stage in stages.values() if mesh else ():
        assert mesh is not None
        stage.shard(mesh, options.microbatches)
        if any(parameter.is_meta for parameter in stage.parameters()):
            give_shares_memory(stage.module, axes.device)
    return {index: stage.to(axes.device) for index, stage in stages.items()}, united(found)
