"""What a process of a rank tells of its collective calls, and what it does not do."""

from __future__ import annotations

import pytest

from algorun.commands.simulate import _free_port
from algorun.host import rank_calls
from tests.launcher.inside.rank_processes import RankProcesses, ended, eventually

STEP = """
import torch
import torch.distributed as dist

def step():
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1).step()
"""
ALONE = f"{STEP}\nstep()\nprint('up', flush=True)\ninput()\n"
GROUP = f"""{STEP}
dist.init_process_group("gloo")
for _ in range(50):
    dist.all_reduce(torch.ones(2, 3))
dist.barrier()
step()
print("up", flush=True)
input()
"""


@pytest.fixture
def processes(tmp_path):
    ranks = RankProcesses(tmp_path)
    yield ranks
    ranks.close()


def begun(processes, text):
    contract = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    process = processes.start(text, **contract)
    assert process.stdout.readline() == "up\n"
    return process


def test_a_process_of_a_group_tells_its_newest_calls_and_ends_as_ever(processes):
    process = begun(processes, GROUP)
    folder = str(processes.run)
    for _ in range(2):
        rank_calls.ask(process.pid, folder)
        calls = eventually(lambda: rank_calls.read(process.pid, 0, folder))
    assert [call.number for call in calls] == list(range(20, 52))
    assert f"{calls[-2]} {calls[-2].members}" == "all_reduce [2, 3] Float at entry.py:10 0"
    assert calls[-1].operation == "barrier"
    assert rank_calls.read(process.pid, 1, folder) == ()
    process.stdin.write("\n")
    process.stdin.flush()
    ended(process)


def test_a_process_without_a_group_has_no_thread_that_waits(processes):
    process = begun(processes, ALONE)
    rank_calls.ask(process.pid, str(processes.run))
    assert not list(processes.run.glob("calls-*"))


@pytest.mark.parametrize("answer", ["", "[]", "{}", '{"rank": 0, "calls": [{}]}', '{"rank": 0, "calls": 3}', "\0"])
def test_an_answer_of_another_form_is_none(answer, tmp_path):
    (tmp_path / "calls-7").write_text(answer)
    assert rank_calls.read(7, 0, str(tmp_path)) == ()
