"""What is measured between two reports."""

from __future__ import annotations

import pytest
import torch

from algorun_train.data.sampler import OptimizerStep
from algorun_train.loop.meter import Meter
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.world import World


@pytest.mark.parametrize(("waited_s", "share"), [(0.0, 0.0), (1000.0, 1.0)])
def test_the_share_of_waiting_is_one_at_most(waited_s, share):
    meter = Meter(Communicator(World(), torch.device("cpu")))
    meter.start()
    meter.add(torch.ones(()), OptimizerStep(epoch=0, begin=0, end=4, pieces=(), weight=4), waited_s)
    meter.fold()
    assert meter.read(meter.total).data_wait == share
