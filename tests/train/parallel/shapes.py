"""Partitions and costs by plain numbers: (pipeline ranks, stages per rank, microbatches, schedule)."""

from algorun_train.parallel.partition.cost_model import CostModel
from algorun_train.parallel.partition.layers_to_stages import choose_stages, does_not_fit
from algorun_train.parallel.schedules import PipelineShape


def chosen(segments, ranks, chunks, microbatches, schedule, optimize="speed", limit_bytes=None, memory=None):
    costs = CostModel(segments, PipelineShape(schedule, ranks, chunks, microbatches), memory)
    found = choose_stages(costs, optimize, limit_bytes)
    if found is None:
        raise does_not_fit(costs, limit_bytes)
    return found


class Costs(CostModel):
    def __init__(self, segments, ranks, chunks, microbatches, schedule, memory=None):
        super().__init__(segments, PipelineShape(schedule, ranks, chunks, microbatches), memory)

    def best(self, optimize="speed", limit_bytes=None):
        return choose_stages(self, optimize, limit_bytes)


def even(segments, stages):
    """The first segment of each stage, with equal numbers of segments as near as that goes."""
    return tuple(segments * stage // stages for stage in range(stages))
