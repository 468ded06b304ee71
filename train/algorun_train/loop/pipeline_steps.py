"""Training steps of a model in pipeline stages: what the loop asks of any way of computing steps."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from algorun_train.data.batch import IGNORED, Batch
from algorun_train.parallel.run.pipeline import Pipeline
from algorun_train.ranks.communicator import Communicator


def sample_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The sum of the losses of a microbatch's samples. Logits [B, C] with labels [B], or [B, T, V] with [B, T]: a
    sequence's loss is the mean over its T tokens. Samples with IGNORED labels add nothing."""
    tokens = labels.numel() // len(labels)
    logits = logits.flatten(0, -2).float()
    return functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="sum") / tokens


def sample_scores(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """float64 [sum of losses, right answers], the latter as a share of each sequence too."""
    tokens = labels.numel() // len(labels)
    right = (logits.argmax(dim=-1) == labels).sum() / tokens
    return torch.stack([sample_losses(logits, labels).double(), right.double()])


class Staged:
    """Steps and evaluates a pipeline. Each rank of it gets the same batches and holds the weights of its own stages."""

    def __init__(
        self, pipeline: Pipeline, optimizer: torch.optim.Optimizer, comm: Communicator, seed: int, clip_norm: float
    ) -> None:
        self.pipeline, self.optimizer = pipeline, optimizer
        self._comm, self._seed, self._clip = comm, seed, clip_norm
        modules = [m for stage in pipeline.modules.values() for m in stage.modules()]
        self._random = any(isinstance(m, nn.Dropout) and m.p > 0 for m in modules)

    def train(self) -> None:
        self.pipeline.train()

    def eval(self) -> None:
        self.pipeline.eval()

    def step(self, batches: Sequence[Batch], total: int, rate: float, number: int) -> torch.Tensor:
        """One optimizer step; `total` samples count over all pipelines.

        Returns this pipeline's sum of losses on the rank that computed it, 0 on its others.
        """
        if self._random:  # as in data parallel steps: the streams depend on (seed, step, rank) only
            torch.manual_seed(((self._seed * 1_000_003 + number) * 65_537 + self._comm.rank) % 2**63)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        (batch,) = batches
        losses = self.pipeline.step(batch.inputs, batch.labels, scale=1 / total)
        if self._clip:
            self.pipeline.clip(self._clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return losses

    def evaluate(self, batch: Batch) -> torch.Tensor:
        """float64 [sum of losses, right answers, samples counted]; zeros on ranks without the last stage."""
        scores = self.pipeline.evaluate(batch.inputs, batch.labels, sample_scores)
        if scores is None:
            return torch.zeros(3, dtype=torch.float64, device=self._comm.device)
        return torch.cat([scores, scores.new_full((1,), batch.valid)])
