"""What a rank's time is spent on, in scripts that say nothing themselves; and that torch works as without the launcher."""

from __future__ import annotations

import json
import textwrap

import pytest

from tests.conftest import algorun
from tests.launcher.whole.running import simulate

PARALLEL = """
    import time, torch, torch.distributed as dist, torch.nn as nn
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, index):
            time.sleep(0.005)
            return torch.ones(4), torch.ones(1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 1)
        def forward(self, inputs):
            time.sleep(0.02)
            return self.inner(inputs)

    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, wanted in DataLoader(Slow(), batch_size=4):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
        if dist.get_rank() == 0:
            time.sleep(0.01)
        dist.barrier()
    with torch.no_grad():
        model(inputs)
    torch.save(model.state_dict(), f"state-{dist.get_rank()}.pt")
    dist.destroy_process_group()
"""

# Its argument is the wrapper. Rank 0's forward and backward are slower than rank 1's, which waits for it.
WRAPPED = """
    import sys, time, torch, torch.distributed as dist, torch.nn as nn

    class Slowly(torch.autograd.Function):
        @staticmethod
        def forward(context, inputs):
            time.sleep(0.04 if dist.get_rank() == 0 else 0.02)
            return inputs.clone()
        @staticmethod
        def backward(context, gradient):
            time.sleep(0.04 if dist.get_rank() == 0 else 0.02)
            return gradient

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        def forward(self, inputs):
            return self.last(Slowly.apply(self.first(inputs)))

    dist.init_process_group("gloo")
    model = Model()
    if sys.argv[1] == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif sys.argv[1] == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    else:
        from torch.distributed.fsdp import fully_shard
        mesh = dist.init_device_mesh("cpu", (2,))
        for module in (model.first, model.last, model):
            fully_shard(module, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(16):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    with torch.no_grad():
        model(torch.ones(2, 4))
    if sys.argv[1] == "fsdp2":
        import torch.distributed.checkpoint as dcp
        dcp.save(model.state_dict(), checkpoint_id="checkpoint")
    dist.destroy_process_group()
"""

STAGES = """
    import time, torch, torch.distributed as dist, torch.nn as nn
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    class Stage(nn.Linear):
        def forward(self, inputs):
            time.sleep(0.01)
            return super().forward(inputs)

    dist.init_process_group("gloo")
    rank, device = dist.get_rank(), torch.device("cpu")
    module = Stage(4, 4)
    stage = PipelineStage(module, rank, 2, device)
    schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(11):
        if rank == 0:
            schedule.step(torch.ones(4, 4))
        else:
            schedule.step(target=torch.ones(4, 4))
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""

# Run in a rank, behind TRAINED: each prints what would change if torch's functions or the user's modules were not what they were.
TRAINED = """
    import inspect, io, pickle, warnings
    import torch, torch.nn as nn

    warnings.simplefilter("ignore")
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""
UNCHANGED = """
    assert pickle.loads(pickle.dumps(torch.save)) is torch.save
    assert pickle.loads(pickle.dumps(torch.autograd.backward)) is torch.autograd.backward
    assert list(inspect.signature(torch.save).parameters)[:2] == ["obj", "f"]
    assert list(inspect.signature(torch.distributed.all_reduce).parameters)[:3] == ["tensor", "op", "group"]
    assert b"algorun" not in pickle.dumps(model)
    whole = io.BytesIO()
    torch.save(model, whole)
    assert b"algorun" not in whole.getvalue()
    print("unchanged")
"""
COMPILED = """
    assert len(torch.fx.symbolic_trace(model).graph.nodes) == 5
    for strict in (True, False):
        exported = torch.export.export(model, (torch.ones(2, 4),), strict=strict)
        assert torch.equal(exported.module()(torch.ones(2, 4)), model(torch.ones(2, 4)))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    compiled(torch.ones(2, 4)).sum().backward()
    optimizer.step()

    torch.distributed.init_process_group("gloo")

    @torch.compile(fullgraph=True, backend="aot_eager")
    def reduced(tensor):
        torch.distributed.all_reduce(tensor)
        return tensor + 1

    assert reduced(torch.ones(1)).item() == 2
    parallel = torch.compile(nn.parallel.DistributedDataParallel(nn.Linear(4, 1)), backend="aot_eager")
    parallel(torch.ones(2, 4)).sum().backward()
    torch.distributed.destroy_process_group()
    print("unchanged")
"""


def script(folder, text):
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    return path


def activities(folder, host):
    return json.loads((folder / host / "output" / "data" / "result.json").read_text())["times"].get("activities", {})


# `make test` has the times of the bundled ddp: test_rank_steps.py.
@pytest.mark.slow
@pytest.mark.usefixtures("nothing_beside")
def test_a_script_of_ddp_says_where_its_time_goes(tmp_path, nothing_left):
    done = simulate("native", script(tmp_path, PARALLEL), folder=tmp_path, marker=nothing_left, layout="2x1")
    assert done.code == 0, done.text
    found = {host: activities(done.folder, host) for host in ("algo-1", "algo-2")}
    for each in found.values():
        assert each["data"] >= 15 * 4 * 0.005  # the batches after the first step
        assert 15 * 0.02 <= each["forward"] <= 1.5 * each["data"]
        assert each["evaluation"] >= 0.02, "a forward without gradients"
        assert min(each["backward"], each["optimizer"], each["saving"]) > 0
    assert found["algo-2"]["exchange"] >= 15 * 0.01, "it waits at the barrier for rank 0"


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_beside")
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp1", "fsdp2"])
def test_the_wait_for_a_slower_rank_is_not_a_ranks_own_time(wrapper, tmp_path, nothing_left):
    path = script(tmp_path, WRAPPED)
    done = simulate("native", path, wrapper, folder=tmp_path, marker=nothing_left, layout="2x1")
    assert done.code == 0, done.text
    slow, fast = (activities(done.folder, host) for host in ("algo-1", "algo-2"))
    assert slow["forward"] >= 15 * 0.04
    assert slow["backward"] >= 15 * 0.04
    assert slow["evaluation"] >= 0.04
    assert 15 * 0.02 <= fast["forward"] < 0.8 * slow["forward"]
    if wrapper != "fsdp1":  # its exchange is in backward
        assert 15 * 0.02 <= fast["backward"] < 0.8 * slow["backward"]
        assert fast["exchange"] > slow["exchange"] + 15 * 0.02
    assert (wrapper == "fsdp2") == bool(slow.get("saving"))


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_beside")
def test_stages_of_torchs_pipelining_say_where_their_time_goes(tmp_path, nothing_left):
    done = simulate("native", script(tmp_path, STAGES), folder=tmp_path, marker=nothing_left, layout="2x1")
    assert done.code == 0, done.text
    for host in ("algo-1", "algo-2"):
        found = activities(done.folder, host)
        assert found["forward"] >= 10 * 2 * 0.01, "two microbatches of each step after the first"
        assert min(found["backward"], found["exchange"]) > 0
        assert "optimizer" in found, "ten steps of so small a model take less than the millisecond that is told"


# A rank loads torch to show that a neighbour's behaviour stays as it was.
@pytest.mark.slow
def test_without_hooks_nothing_is_said(tmp_path, nothing_left):
    path = script(tmp_path, PARALLEL)
    done = simulate("native", path, folder=tmp_path, marker=nothing_left, layout="1x1", ALGORUN_HOOKS="off")
    assert done.code == 0, done.text
    assert activities(done.folder, "algo-1") == {}


# To compile takes 6 s of CPU.
@pytest.mark.slow(but=["plain"])
@pytest.mark.parametrize("text", [UNCHANGED, COMPILED], ids=["plain", "compiled"])
def test_torch_and_the_users_modules_stay_what_they_were(text, tmp_path, nothing_left):
    path = script(tmp_path, TRAINED + text)
    done = algorun("run", str(path), cwd=tmp_path, ALGORUN_TEST=nothing_left, SAGEMAKER_BASE_DIR=str(tmp_path))
    assert done.code == 0, done.text
    assert "unchanged" in done.out


@pytest.mark.slow
def test_an_exception_is_shown_without_the_launchers_frames(tmp_path, nothing_left):
    path = script(
        tmp_path,
        """
        import torch
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        weight.sum().backward()
        optimizer.step()
        weight.detach().sum().backward()
        """,
    )
    done = algorun("run", str(path), cwd=tmp_path, ALGORUN_TEST=nothing_left, SAGEMAKER_BASE_DIR=str(tmp_path))
    assert done.code == 1, done.text
    failure = (tmp_path / "output" / "failure").read_text()
    assert "does not require grad" in failure
    assert "rank_activities" not in failure
