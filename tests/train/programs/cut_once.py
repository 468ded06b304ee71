"""Waits for rank 0 for longer than a collective may take, then cuts a model that fails on rank 0, which alone runs it.

With the word `absent` rank 1 leaves before rank 0 begins its work.
"""

import datetime
import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional

from algorun.pipeline import pipeline
from algorun_train.ranks import join
from algorun_train.ranks.world import read_world
from tests.train import short_collectives


class Broken(nn.Sequential):
    def forward(self, x):
        raise ValueError("this model does not run")


short_collectives.meet(2)
comm = join.enter(read_world(os.environ))
if sys.argv[1:] == ["absent"]:
    if comm.rank == 0:
        comm.from_leader(lambda: 7, datetime.timedelta(hours=2))
    sys.exit(0)
print(comm.from_leader(lambda: time.sleep(3) or 7, datetime.timedelta(seconds=20)), flush=True)
pipeline(Broken(nn.Linear(2, 2), nn.Linear(2, 2)), torch.ones(2, 2), functional.cross_entropy, pp=2, microbatches=2)
