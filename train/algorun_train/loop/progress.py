"""How far training is. The training loop counts it, a checkpoint keeps it, and a resumed job continues from it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """`samples` samples of `epoch` (from 0) are trained; `step` counts the optimizer steps of all epochs so far.

    An epoch ends with its evaluation: before that it keeps its number, even if all of its samples are trained. `labels`
    counts the labels of these samples that count.
    """

    epoch: int = 0
    samples: int = 0
    step: int = 0
    labels: int = 0


@dataclass(frozen=True, slots=True)
class LoopProgress:
    """The state of the training loop in a checkpoint. `losses[r]` is rank r's sum of losses in this epoch so far."""

    position: Position
    losses: list[float]
