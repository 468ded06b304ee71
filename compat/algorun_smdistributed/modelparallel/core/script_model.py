"""The script's model on this rank, and what stands for it while a step function runs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from algorun_smdistributed.replicas.part import ReplicaOptions
from algorun_smdistributed.replicas.whole_model import WholeModel
from algorun_smdistributed.signatures.pipelines import StageSetting
from algorun_smdistributed.signatures.placed_model import PlacedModel

from .answers import Answer, Whole
from .context import Context
from .planning import planned, run_options
from .sharded_state import ShardedModelState
from .sharded_whole import ShardedWhole


class ScriptModel(PlacedModel):
    """Made, and stepped, on all ranks. With one partition it is placed at once, otherwise at the first step."""

    NOT_YET = (
        "the model is not partitioned yet; allowed: after the first @smp.step call; "
        "fix: register_post_partition_hook, or ask later"
    )

    def __init__(self, context: Context, module: nn.Module, replicas: ReplicaOptions, average: bool) -> None:
        """`average`: gradients are the mean over the microbatches instead of their sum."""
        setting = StageSetting(context.axes, context.pipeline, run_options(context), replicas)
        super().__init__(context, module, setting, functools.partial(planned, context, module), average)
        self.context = context
        self.answer: Answer | None = None
        """of what calls of the model mean now"""
        self.tracing = False
        """whether a step function runs once more, to see what it does"""
        self.shares: ShardedModelState | None = None
        """the state dicts, with sharded data parallelism"""

    def _make_whole(self) -> WholeModel:
        if self.context.mesh is None:
            return super()._make_whole()
        part = ShardedWhole(self.module, self.context, self._setting.replicas)
        self.shares = ShardedModelState(part)
        return part

    @property
    def sharded(self) -> ShardedWhole | None:
        """This rank's shares, with sharded data parallelism."""
        return self.part if isinstance(self.part, ShardedWhole) else None

    @property
    def loss_scale(self) -> float:
        """By which `backward` multiplies losses, so that gradients of float16 do not vanish."""
        return self.sharded.loss_scale if self.sharded else 1.0

    def norm_over_ranks(self, parameters: list[torch.Tensor], order: float) -> torch.Tensor | None:
        if self.sharded is not None and any(isinstance(each, DTensor) for each in parameters):
            return self.sharded.norm(parameters, order)
        return super().norm_over_ranks(parameters, order)

    @contextlib.contextmanager
    def answered_by(self, answer: Answer) -> Iterator[None]:
        """Calls of the model and of `backward` go to `answer` meanwhile."""
        outer, self.answer = self.answer, answer
        try:
            yield
        finally:
            self.answer = outer

    @contextlib.contextmanager
    def whole_step(self) -> Iterator[Whole]:
        """A step with one partition; yields what calls of the model in it mean."""
        part = self.begin_whole()
        answer = Whole(self.module, self.scale * self.loss_scale, part.counted)
        with part.scaled(self.scale):
            yield answer
        part.end(answer.backwards)
