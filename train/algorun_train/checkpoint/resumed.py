"""What a job knows about the checkpoint that it has resumed from."""

from dataclasses import dataclass

from algorun_train.loop.progress import LoopProgress

from .finished import Artifact
from .state_file import Values


@dataclass(frozen=True, slots=True)
class Resumed:
    """`folder` is the checkpoint's path on rank 0, `options` those that it was trained with: {} if it does not say.
    `artifact` is the artifact that was written of exactly this state, None without one."""

    folder: str
    progress: LoopProgress
    options: Values
    artifact: Artifact | None
