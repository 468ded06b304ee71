"""The ranks that hold one model."""

from __future__ import annotations

from dataclasses import dataclass, field

from algorun_smdistributed.happening import Happening
from algorun_smdistributed.ranks.meeting import RankMeeting
from algorun_train.parallel.layout.layout import Layout
from algorun_train.parallel.run.process_groups import Axes
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.object_channel import ObjectChannel


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRanks:
    """This rank's place among them, and its ways to the others. Make it on all ranks of the job."""

    comm: Communicator
    layout: Layout
    axes: Axes
    pipeline: RankMeeting
    """of the ranks of this pipeline"""
    replicas: RankMeeting
    """of the ranks with the same stages"""
    steps: ObjectChannel
    """between the ranks of this pipeline: what a pass of the model needs and gives"""
    partition: Happening = field(default_factory=Happening)
    """this rank has its part of the model"""
