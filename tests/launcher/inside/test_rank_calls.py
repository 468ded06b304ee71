"""What a process of a rank tells of its collective calls, and what it does not do."""

from __future__ import annotations

import pytest

from algorun.host.ranks import rank_calls
from tests.launcher.inside.rank_processes import RankProcesses, ended, eventually
from tests.ports import own_port

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
# What torch's recorder of GPUs tells where call 100 hangs and the program has queued 60 more. Its format is that of torch 2.11.
ON_GPU = GROUP.replace(
    "step()\nprint",
    """
import pickle
import torch._C._distributed_c10d as compiled
entry = dict(process_group=("0", "default_pg"), is_p2p=False, profiling_name="nccl:all_reduce", time_created_ns=0,
             input_sizes=((2, 3),), input_dtypes=["Float"], frames=[])
states = {n: "completed" if n < 100 else "scheduled" for n in range(1, 161)}
trace = [dict(entry, record_id=n, collective_seq_id=n, time_created_ns=n, state=state) for n, state in states.items()]
compiled._dump_nccl_trace = lambda: pickle.dumps({"entries": trace})
compiled._dump_fr_trace = lambda: pickle.dumps({"entries": []})
step()
print""",
)


@pytest.fixture
def processes(tmp_path):
    ranks = RankProcesses(tmp_path)
    yield ranks
    ranks.close()


def begun(processes, text):
    contract = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(own_port())}
    process = processes.start(text, **contract)
    assert process.stdout.readline() == "up\n"
    return process


def test_a_process_of_a_group_tells_its_newest_calls_and_ends_as_ever(processes):
    process = begun(processes, GROUP)
    folder = str(processes.run)
    for _ in range(2):
        rank_calls.ask(process.pid, folder)
        calls = eventually(lambda: rank_calls.read_calls(process.pid, 0, folder))
    assert [call.number for call in calls] == list(range(36, 52))
    assert f"{calls[-2]} {calls[-2].members}" == "all_reduce [2, 3] Float at entry.py:10 0"
    assert calls[-1].operation == "barrier"
    assert rank_calls.read_calls(process.pid, 1, folder) == ()
    process.stdin.write("\n")
    process.stdin.flush()
    ended(process)


@pytest.mark.slow
def test_a_process_on_a_gpu_tells_the_calls_around_the_first_that_has_not_completed(processes):
    process = begun(processes, ON_GPU)
    rank_calls.ask(process.pid, str(processes.run))
    calls = eventually(lambda: rank_calls.read_calls(process.pid, 0, str(processes.run)))
    assert [(call.number, call.state) for call in calls] == [
        *((n, "completed") for n in range(92, 100)),
        *((n, "scheduled") for n in range(100, 108)),
    ]
    process.stdin.write("\n")
    process.stdin.flush()
    ended(process)


@pytest.mark.slow
def test_a_process_without_a_group_has_no_thread_that_waits(processes):
    process = begun(processes, ALONE)
    rank_calls.ask(process.pid, str(processes.run))
    assert not list(processes.run.glob("calls-*"))


@pytest.mark.parametrize("answer", ["", "[]", "{}", '{"rank": 0, "calls": [{}]}', '{"rank": 0, "calls": 3}', "\0"])
def test_an_answer_of_another_form_is_none(answer, tmp_path):
    (tmp_path / "calls-7").write_text(answer)
    assert rank_calls.read_calls(7, 0, str(tmp_path)) == ()
