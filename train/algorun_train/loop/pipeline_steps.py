"""Steps of a model in pipeline stages."""

from collections.abc import Sequence

import torch
from torch.nn import functional

from algorun_train.data.batch import IGNORED, Batch
from algorun_train.parallel.run.pipeline import Pipeline
from algorun_train.ranks.communicator import Communicator

from .learning_rate import set_learning_rate
from .stepper import draws_random_numbers, seed_step


def sample_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The sum of the losses of a microbatch's samples, a scalar.

    Images: logits [B, classes], labels [B]. Text: logits [B, T, vocabulary], labels [B, T]; a sequence's loss is the mean
    over its T tokens. Samples whose labels are IGNORED add nothing.
    """
    tokens = labels.numel() // len(labels)
    logits = logits.flatten(0, -2).float()
    return functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="sum") / tokens


def sample_scores(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """float64 [sum of losses, number of right answers]. A sequence adds the share of its tokens that are right."""
    tokens = labels.numel() // len(labels)
    right = (logits.argmax(dim=-1) == labels).sum() / tokens
    return torch.stack([sample_losses(logits, labels).double(), right.double()])


class PipelineSteps:
    """A stepper that trains a pipeline. All of its ranks get the same batches; each holds the weights of its own stages."""

    def __init__(
        self, pipeline: Pipeline, optimizer: torch.optim.Optimizer, comm: Communicator, seed: int, clip_norm: float
    ) -> None:
        self.pipeline, self.optimizer = pipeline, optimizer
        self.comm, self._seed, self._clip = comm, seed, clip_norm
        self._random = draws_random_numbers(list(pipeline.stages.values()))

    def train(self) -> None:
        self.pipeline.train()

    def eval(self) -> None:
        self.pipeline.eval()

    def step(self, batches: Sequence[Batch], total: int, rate: float, number: int) -> torch.Tensor:
        """See `Stepper`; `batches` has one batch. Returns the sum of this pipeline's losses on the rank with the last stage,
        and 0 on its other ranks."""
        if self._random:
            seed_step(self._seed, number, self.comm.rank)
        set_learning_rate(self.optimizer, rate)
        (batch,) = batches
        losses = self.pipeline.step(batch.inputs, batch.labels, scale=1 / max(total, 1))
        if self._clip:
            self.pipeline.clip(self._clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return losses

    def evaluate(self, batch: Batch) -> torch.Tensor:
        """See `Stepper`. Returns zeros on ranks without the last stage."""
        scores = self.pipeline.evaluate(batch.inputs, batch.labels, sample_scores)
        if scores is None:
            return torch.zeros(3, dtype=torch.float64, device=self.comm.device)
        return torch.cat([scores, scores.new_full((1,), batch.valid)])
