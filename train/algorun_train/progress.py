"""How far training is: what the training loop counts, a checkpoint keeps, and reports are compared with."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """`samples` of `epoch` (0-based) are done, after `step` optimizer steps in all epochs.

    An epoch all of whose samples are done is not finished before its evaluation.
    """

    epoch: int = 0
    samples: int = 0
    step: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """What a checkpoint keeps of the training loop. `losses[r]` is rank r's sum of losses in this epoch so far."""

    position: Position
    losses: list[float]
