"""The script's model on this rank, and what stands for it while a step function runs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from torch import nn

from algorun_train.parallel.replicas.part import ReplicaOptions
from algorun_train.parallel.signatures.pipelines import Setting
from algorun_train.parallel.signatures.placed_model import PlacedModel

from .answers import Answer, Whole
from .context import Context
from .planning import planned, run_options


class ScriptModel(PlacedModel):
    """Made, and stepped, on all ranks. With one partition it is placed at once, otherwise at the first step."""

    NOT_YET = (
        "the model is not partitioned yet; allowed: after the first @smp.step call; "
        "fix: register_post_partition_hook, or ask later"
    )

    def __init__(self, context: Context, module: nn.Module, replicas: ReplicaOptions, average: bool) -> None:
        """`average`: gradients are the mean over the microbatches instead of their sum."""
        setting = Setting(context.axes, context.pipeline, run_options(context), replicas)
        super().__init__(context, module, setting, functools.partial(planned, context, module), average)
        self.context = context
        self.answer: Answer | None = None
        """of what calls of the model mean now"""
        self.tracing = False
        """whether a step function runs once more, to see what it does"""

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
        answer = Whole(self.module, self.scale, part.counted)
        with part.scaled(self.scale):
            yield answer
        part.end(answer.backwards)
