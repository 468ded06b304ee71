"""How a job's ranks share the work: replicas of a pipeline, stages of each, microbatches of a batch. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from algorun_train.parallel.schedules import PipelineShape

from .grid import Grid


@dataclass(frozen=True, slots=True)
class Layout:
    """A batch of each replica is `microbatches` x `microbatch` samples. Every rank of a pipeline runs `chunks` stages."""

    grid: Grid
    schedule: str
    chunks: int
    microbatches: int
    microbatch: int
    """samples of one microbatch"""
    shards: int = 1
    """pipelines that share the weights of one replica: each rank of them holds 1 / that of its stages' weights"""

    @property
    def stages(self) -> int:
        """Stages of one pipeline."""
        return self.grid.pp * self.chunks

    @property
    def shape(self) -> PipelineShape:
        """One pipeline, as schedules and partition see it."""
        return PipelineShape(self.schedule, self.grid.pp, self.chunks, self.microbatches)

    @property
    def member(self) -> str:
        """What computes a stage, in a word for the log."""
        return "rank" if self.grid.tensor == 1 else "tensor group"

    def __str__(self) -> str:
        return (
            f"{_count(self.grid.dp, 'pipeline')} of {_count(self.grid.pp, self.member)} ({self.grid.placement}), "
            f"{_count(self.stages, 'stage')}, schedule {self.schedule}, "
            f"{self.microbatches} microbatches of {self.microbatch}"
            + (f", sharded over {self.shards} pipelines" if self.shards > 1 else "")
        )


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
