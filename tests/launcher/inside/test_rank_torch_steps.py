"""Inside a rank: the steps of the real torch, and graphs, which stand for steps."""

from __future__ import annotations

import pytest

from .rank_processes import ended, line


# A rank loads torch to show that a neighbour's behaviour stays as it was.
@pytest.mark.slow
def test_the_real_torch_several_optimizers_and_a_step_within_a_step(rank):
    code = """
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]
for weight in weights: weight.grad = torch.ones(3)
both = [torch.optim.Adam(weights[:1]), torch.optim.SGD(weights[1:2], lr=.1)]  # as a GAN has
for _ in range(5):
    for optimizer in both: optimizer.step()
print('two', flush=True)
input()
for workers in (0, 2, 1): list(torch.utils.data.DataLoader([1, 2, 3], num_workers=workers))
torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)
zero = ZeroRedundancyOptimizer(weights, torch.optim.Adam, lr=.1)
zero.step()
print('zero', flush=True)
input()
scheduler = torch.optim.lr_scheduler.StepLR(both[0], 1)
compiled = torch.compile(both[0].step, backend='eager')
for _ in range(20): compiled()
import torch._dynamo.utils as utils
print('compiled', utils.counters['stats'].get('unique_graphs', 0) < 5, flush=True)
"""
    process = rank.start(code)
    counts = []
    workers = []
    for expected in ("two", "zero"):
        line(process, expected)
        counts.append(rank.board.read(0).count)
        workers.append(rank.board.read(0).workers)
        process.stdin.write("\n")
        process.stdin.flush()
    assert counts == [10, 12]
    assert workers == [None, 2], "those of the loader that has most"
    assert ended(process).splitlines()[-1] == "compiled True"
    assert rank.board.read(0).count == 32


GRAPHS = """
class {base}:
    def replay(self):
        return ("replayed", self)

class {name}({base}):
    def replay(self):
        "Replay the captured work."
        return super().replay()
"""


def test_a_replayed_graph_is_a_sign_of_life_but_no_step(light):
    """A captured optimizer calls no hook. One step may be many graphs, so these are not counted."""
    for module, name in (("cuda", "CUDAGraph"), ("accelerator", "Graph")):
        (light.code / "torch" / module).mkdir()
        (light.code / "torch" / module / "__init__.py").write_text(f"from .graphs import {name}\n")
        (light.code / "torch" / module / "graphs.py").write_text(GRAPHS.format(base=f"_{name}", name=name))
    code = """
import torch.cuda, torch.accelerator
from torch.optim.optimizer import step

class Own(torch.cuda.CUDAGraph):
    def replay(self):
        return super().replay()

graphs = torch.cuda.CUDAGraph(), Own(), torch.accelerator.Graph()
for graph in graphs:  # before the first step: nobody asks yet
    graph.replay()
step()
step()
print(torch.cuda.CUDAGraph.replay.__name__, torch.cuda.CUDAGraph.replay.__doc__, flush=True)
for graph in graphs:
    input()
    assert graph.replay() == ("replayed", graph)
    print("went on", flush=True)
"""
    process = light.start(code)
    line(process, "replay Replay the captured work.")
    for _ in range(3):
        before = light.board.read(0)
        assert before.count == 2
        process.stdin.write("\n")
        process.stdin.flush()
        line(process, "went on")
        assert light.board.read(0).last_at > before.last_at
    ended(process)


LOADER = """
class _BaseDataLoaderIter:
    def __next__(self):
        return 7

class DataLoader:
    num_workers = 0

    def __iter__(self):
        return _BaseDataLoaderIter()
"""


@pytest.mark.parametrize("said", ["", "evaluation"])
def test_a_batch_is_a_sign_of_life_but_no_step(said, light):
    """An evaluation takes batches for long, and makes no step."""
    (light.code / "torch" / "utils" / "data").mkdir(parents=True)
    for folder in ("utils", "utils/data"):
        (light.code / "torch" / folder / "__init__.py").touch()
    (light.code / "torch" / "utils" / "data" / "dataloader.py").write_text(LOADER)
    with (light.code / "torch" / "optim" / "optimizer.py").open("a") as file:
        file.write("register_optimizer_step_pre_hook = [].append\nclass Optimizer: pass\n")
    code = f"""
import sys
import time
from torch.utils.data.dataloader import DataLoader
from torch.optim.optimizer import step

batches = iter(DataLoader())
next(batches)  # before the first step: another rule holds
step()
print("stepped", flush=True)
input()
time.sleep(0.2)
if {said!r}:  # as the bundled jobs do
    sys.modules["algorun_rank_steps"].activities.begin({said!r})
assert next(batches) == 7
print("went on", flush=True)
"""
    process = light.start(code)
    line(process, "stepped")
    before = light.board.read(0)
    process.stdin.write("\n")
    process.stdin.flush()
    line(process, "went on")
    after = light.board.read(0)
    assert (after.count, after.step_at) == (1, before.step_at)
    assert after.last_at > before.last_at + 0.2
    assert after.longest_s >= 0.2
    ended(process)


@pytest.mark.slow
def test_the_graphs_of_the_real_torch_show_life(rank):
    """On a CPU a graph cannot be captured: what torch's class calls is put in place of the driver's part."""
    code = """
import torch
from torch._C import _CUDAGraph
_CUDAGraph.replay = lambda self: "replayed"
torch.cuda.CUDAGraph._has_graph_exec = True  # torch 2.15 asks whether anything has been captured
if torch.version.cuda:
    graph = torch.cuda.CUDAGraph.__new__(torch.cuda.CUDAGraph)
else:
    graph = object.__new__(torch.cuda.CUDAGraph)
    graph._tracker = None
weight = torch.nn.Parameter(torch.ones(3))
weight.grad = torch.ones(3)
torch.optim.SGD([weight], lr=.1).step()
print("stepped", flush=True)
input()
assert graph.replay() is None  # as torch's own
other = getattr(torch.accelerator, "Graph", torch.cuda.CUDAGraph)  # torch 2.10 has no other
print("replayed", other.replay.__code__.co_filename.endswith("rank_steps.py"), flush=True)
"""
    process = rank.start(code)
    line(process, "stepped")
    before = rank.board.read(0)
    process.stdin.write("\n")
    process.stdin.flush()
    line(process, "replayed True")
    after = rank.board.read(0)
    assert (after.count, after.longest_s) == (1, before.longest_s)
    assert after.last_at > before.last_at
    ended(process)
