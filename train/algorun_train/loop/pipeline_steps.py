"""Steps of a model in pipeline stages."""

from collections.abc import Sequence

import torch

from algorun_train.common.activity import Activity, say_group
from algorun_train.data.batch import Batch
from algorun_train.options.job_options import TrainOptions
from algorun_train.parallel.run.pipeline import Pipeline
from algorun_train.ranks.communicator import Communicator

from .learning_rate import set_learning_rate
from .losses import Scoring
from .stepper import seed_step


class PipelineSteps:
    """A stepper that trains a pipeline. All of its ranks get the same batches; each holds the weights of its own stages.

    `scoring.loss` is the loss that the pipeline was made with. `random`: whether a step of the model draws random numbers.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        optimizer: torch.optim.Optimizer,
        comm: Communicator,
        options: TrainOptions,
        scoring: Scoring,
        random: bool,
    ) -> None:
        self.pipeline, self.optimizer, self._scoring = pipeline, optimizer, scoring
        self.comm, self._seed, self._clip, self._random = comm, options.seed, options.clip_norm, random
        say_group(min(self.pipeline.stages))  # the same stages of other pipelines do the same work

    def train(self) -> None:
        self.pipeline.train()

    def eval(self) -> None:
        self.pipeline.eval()

    def step(self, batches: Sequence[Batch], total: int, rate: float, number: int) -> torch.Tensor:
        """See `Stepper`; `batches` has one batch. Returns the sum of this pipeline's losses on the rank with the last stage,
        and 0 on its other ranks."""
        if self._random:
            seed_step(self._seed, number, self.comm, self.comm.rank // self.pipeline.axes.grid.tensor)
        set_learning_rate(self.optimizer, rate)
        (batch,) = batches
        with Activity("exchange"):  # but for what the stages compute
            losses = self.pipeline.step(batch.inputs, batch.labels, scale=1 / max(total, 1))
        with Activity("optimizer"):
            if self._clip:
                self.pipeline.clip(self._clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return self._counted(losses)

    def evaluate(self, batch: Batch) -> torch.Tensor:
        """See `Stepper`. Returns zeros on ranks without the last stage, and on all but one of a tensor group."""
        scores = self.pipeline.evaluate(batch.inputs, batch.labels, self._scoring.scores)
        if scores is None:
            return torch.zeros(3, dtype=torch.float64, device=self.comm.device)
        return self._counted(scores)

    def _counted(self, sums: torch.Tensor) -> torch.Tensor:
        """The sums on one rank of a tensor group, zeros on its other ranks."""
        axis = self.pipeline.axes.tensor
        return torch.zeros_like(sums) if axis and axis.index else sums
