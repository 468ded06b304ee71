"""A real hang: what the ranks' own stacks and step counts say about it."""

from __future__ import annotations

import pytest

from algorun.control.hang.hang import Stack, message, odd
from algorun.host.ranks import stacks
from tests.launcher.inside.rank_processes import RankProcesses, eventually
from tests.ports import own_port

PROGRAM = """
import os, sys, time
import torch
import torch.distributed as dist

def sleeps():
    time.sleep(1000)

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("up", flush=True)
if dist.get_rank() == 1:
    sleeps()
model(torch.ones(2, 4)).sum().backward()
"""


@pytest.fixture
def pair(tmp_path):
    ranks = RankProcesses(tmp_path, 2)
    yield ranks
    ranks.close()


# test_hang.py has the stacks of DDP.
@pytest.mark.slow
def test_the_rank_that_sleeps_outside_ddp_s_backward_is_named(pair):
    contract = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(own_port())}
    processes = [pair.start(PROGRAM, rank, RANK=str(rank), LOCAL_RANK=str(rank), **contract) for rank in (0, 1)]
    for process in processes:
        assert process.stdout.readline() == "up\n"

    def look(rank):
        text = pair.stack(processes[rank].pid)
        frames = stacks.frames(text)
        stack = Stack(rank, "algo-1", pair.board.read(rank).count, frames, text=text)
        return Stack(rank, "algo-1", stack.steps, frames, text=text, source=stacks.source(stack.own))

    eventually(lambda: look(0).wait)
    seen = [look(0), look(1)]
    assert odd(seen) is seen[1]
    assert message(seen[1], seen, 600).startswith(
        "no step for 600 s after step 3: sleeps at entry.py:7: time.sleep(1000) while 1 other waits in backward ("
    )
