"""A job whose one rank is slow says so while it runs, and an even job says nothing."""

from __future__ import annotations

import re

import pytest

from tests.launcher.inside.test_rank_activities import script
from tests.launcher.whole.running import simulate

JOB = """
    import sys, time, torch, torch.distributed as dist, torch.nn as nn

    part, delayed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

    class Slowly(torch.autograd.Function):
        @staticmethod
        def forward(context, inputs):
            time.sleep(0.02 + extra("forward"))
            return inputs.clone()
        @staticmethod
        def backward(context, gradient):
            time.sleep(0.02 + extra("backward"))
            return gradient

    def extra(name):
        return 0.04 if name == part and dist.get_rank() == delayed else 0.0

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        def forward(self, inputs):
            return self.last(Slowly.apply(self.first(inputs)))

    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    until = time.monotonic() + seconds
    go_on = torch.ones(1)
    while go_on.item():
        time.sleep(extra("what no activity names"))
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        go_on.fill_(time.monotonic() < until)
        dist.broadcast(go_on, 0)
    dist.destroy_process_group()
"""


@pytest.mark.timed
@pytest.mark.parametrize("part", ["forward", "backward", "what no activity names"])
def test_a_slow_rank_is_named_with_its_host_and_what_it_spends_its_time_on(part, tmp_path, nothing_left):
    path = script(tmp_path, JOB)
    done = simulate(
        *("native", path, part, "2", "9"), folder=tmp_path, marker=nothing_left, layout="2x2", ALGORUN_TIMES_S="1"
    )
    assert done.code == 0, done.text
    lines = [line for line in done.text.splitlines() if " slow: " in line]
    assert len(lines) == 1, done.text
    assert re.search(rf"warning: slow: rank 2 on algo-2: .* most of the excess in {part}; the others wait", lines[0])


@pytest.mark.timed
def test_in_an_even_job_nobody_is_slow(tmp_path, nothing_left):
    path = script(tmp_path, JOB)
    done = simulate(
        *("native", path, "none", "0", "9"), folder=tmp_path, marker=nothing_left, layout="2x2", ALGORUN_TIMES_S="1"
    )
    assert done.code == 0, done.text
    assert " slow: " not in done.text
