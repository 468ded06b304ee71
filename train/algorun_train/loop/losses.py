"""How a model's output is compared with its labels: sums over what counts, so that ranks and passes can add them up."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from algorun_train.data.batch import IGNORED
from algorun_train.parallel.shard.split_logits import SplitLogits

Compare = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Scoring:
    """Both functions take logits [B, .., classes] and labels [B, ..]; labels that are IGNORED add nothing.

    `loss`: the sum of losses, a scalar. `scores`: float64 [sum of losses, number of right answers, number of what counts].
    """

    loss: Compare
    scores: Compare


def sum_of_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The sum of cross entropies of logits [.., classes] and labels [..], without the IGNORED ones; a scalar. Of logits in
    half precision it is computed in float32, as autocast does."""
    logits = logits.float() if logits.dtype in HALF else logits
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum")


def label_scores(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """See `Scoring`; each label counts."""
    right = (logits.argmax(dim=-1) == labels).sum()
    counted = (labels != IGNORED).sum()  # on the device, so the host waits for no copy
    return torch.stack([sum_of_losses(logits, labels).double(), right.double(), counted.double()])


def split_scoring(logits_of: SplitLogits) -> Scoring:
    """`PER_LABEL` for logits of which each rank of a tensor group has some words."""

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return logits_of.sum_of_losses(logits.float() if logits.dtype in HALF else logits, labels, IGNORED)

    def scores(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        right = (logits_of.best(logits) == labels).sum()
        return torch.stack([loss(logits, labels).double(), right.double(), (labels != IGNORED).sum().double()])

    return Scoring(loss, scores)


def sample_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The sum of the losses of a microbatch's samples, a scalar.

    Images: logits [B, classes], labels [B]. Text: logits [B, T, vocabulary], labels [B, T]; a sequence's loss is the mean
    over its T tokens. Samples whose labels are IGNORED add nothing.
    """
    return sum_of_losses(logits, labels) / _per_sample(labels)


def sample_scores(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """See `Scoring`; each sample counts. A sequence adds the share of its tokens that are right."""
    return label_scores(logits, labels) / _per_sample(labels)


def _per_sample(labels: torch.Tensor) -> int:
    return labels.numel() // len(labels)


PER_LABEL = Scoring(sum_of_losses, label_scores)
PER_SAMPLE = Scoring(sample_losses, sample_scores)
