"""Inside a rank: its steps are counted, whoever makes them, and nothing of the user's is disturbed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from algorun.errors import UserError
from algorun.host import stacks
from algorun.host.step_counter import StepBoard

from .rank_processes import LIMIT_S, RankProcesses, eventually, write_light_torch

USER = "from torch.optim.optimizer import step\n"


@pytest.fixture
def rank(tmp_path):
    processes = RankProcesses(tmp_path)
    yield processes
    processes.close()


@pytest.fixture
def light(rank):
    """Ranks whose torch is a file in their own folder."""
    write_light_torch(rank.code)
    return rank


def ended(process):
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, out
    return out


def line(process, expected):
    assert process.stdout.readline().strip() == expected, process.stdout.read()


def test_steps_their_time_and_the_longest_pause(light):
    before = time.monotonic()
    process = light.start(USER + "import time\nfor pause in (0, .3, 0, 0):\n    time.sleep(pause)\n    step()\n")
    ended(process)
    steps = light.board.read(0)
    assert (steps.count, steps.pid) == (4, process.pid)
    assert before < steps.last_at < time.monotonic()
    assert 0.3 <= steps.longest_s < time.monotonic() - before


def test_each_local_rank_has_a_record_of_its_own(tmp_path):
    ranks = RankProcesses(tmp_path, 3)
    write_light_torch(ranks.code)
    try:
        ended(ranks.start(USER + "step()\nstep()\n", local_rank=2))
        ended(ranks.start(USER + "step()\n", local_rank=1))
        assert [ranks.board.read(index).count for index in range(3)] == [0, 1, 2]
    finally:
        ranks.close()


def test_the_finder_is_there_once_and_gone_with_torch(light):
    """The .pth file of a virtual environment runs twice."""
    code = (
        "import sys\ncount = lambda: sum(type(f).__name__ == 'Finder' for f in sys.meta_path)\n"
        "print(count())\nimport torch.optim.optimizer as o\nprint(count(), len(o.hooks), o.__loader__.__dict__.keys() & {'exec_module'}, 'mmap' in sys.modules)\n"
    )
    assert ended(light.start(code)).split("\n")[:2] == ["1", "0 1 set() False"]


def test_nothing_of_ours_can_be_shadowed(light):
    for name in ("mmap", "struct", "faulthandler", "json", "signal", "socket", "typing", "types"):
        (light.code / f"{name}.py").write_text("raise SystemExit('of the user')")
    process = light.start(
        USER + "step()\ntry:\n    import mmap\nexcept SystemExit as error:\n    print(error, flush=True)\ninput()\n",
        PYTHONPATH=str(light.code),
    )
    line(process, "of the user")
    assert light.board.read(0).count == 1
    assert 'entry.py", line' in light.stack(process.pid)


def test_a_script_with_an_excepthook_of_its_own_is_counted(light):
    process = light.start("import sys\nsys.excepthook = lambda *_: print('mine')\n" + USER + "step()\nraise KeyError\n")
    out, _ = process.communicate(timeout=LIMIT_S)
    assert out == "mine\n"
    assert light.board.read(0).count == 1


def test_without_the_supervisor_s_file_a_script_runs_all_the_same(light):
    (light.run / "steps").unlink()
    assert ended(light.start(USER + "step()\nprint('fine')\n")) == "fine\n"


def test_a_shell_script_s_programs_count_on_and_the_shell_is_left_alone(light):
    (light.code / "part.py").write_text(USER + "step()\nstep()\nprint('done', flush=True)\ninput()\n")
    process = light.start("python part.py\npython part.py\necho shell lives\n", name="entry.sh")
    line(process, "done")
    assert not stacks.ask(process.pid, str(light.run))
    steps = light.board.read(0)
    assert steps.count == 2
    assert steps.pid != process.pid
    eventually(lambda: 'part.py", line 5 in <module>' in light.stack(steps.pid))  # the line before it is still at work
    process.stdin.write("\n")
    process.stdin.flush()
    line(process, "done")
    assert light.board.read(0).count == 4
    assert not stacks.ask(steps.pid, str(light.run))  # it has ended, its file is still there
    process.stdin.write("\n")
    assert ended(process) == "shell lives\n"


def test_a_program_that_was_exec_ed_is_never_signalled(light):
    process = light.start(USER + "step()\nimport os\nprint('up', flush=True)\nos.execvp('sleep', ['sleep', '60'])\n")
    line(process, "up")
    eventually(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
    assert process.pid in stacks.askable(str(light.run))
    assert not stacks.ask(process.pid, str(light.run))
    assert process.poll() is None


def test_a_child_s_steps_are_signs_of_life_but_its_parent_counts(light):
    code = USER + (
        "import os, time\nstep()\nprint(os.getpid(), flush=True)\ninput()\n"
        "child = os.fork()\nif not child:\n    for _ in range(50): step()\n    print(os.getpid(), flush=True)\n    time.sleep(60)\n"
        "time.sleep(60)\n"
    )
    process = light.start(code)
    line(process, str(process.pid))
    first = light.board.read(0)
    process.stdin.write("\n")
    process.stdin.flush()
    child = int(process.stdout.readline())
    steps = light.board.read(0)
    assert (steps.count, steps.pid) == (1, process.pid)
    assert steps.last_at > first.last_at
    assert "in <module>" in light.stack(child)
    assert stacks.read(process.pid, str(light.run)) == ""


def test_a_forked_child_that_does_not_step_cannot_be_asked(light):
    """A DataLoader's worker: thousands of them leave no files behind."""
    code = USER + "import os, time\nchild = os.fork()\nif child: print(child, flush=True)\ntime.sleep(60)\n"
    process = light.start(code)
    child = int(process.stdout.readline())
    assert not stacks.ask(child, str(light.run))
    assert stacks.askable(str(light.run)) == [process.pid]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_handler_of_the_user_s_for_the_same_signal_stays(when, light):
    mine = "import signal\nsignal.signal(signal.SIGUSR2, lambda *_: print('mine', flush=True))\n"
    order = mine + USER if when == "before" else USER + mine
    process = light.start(order + "step()\nprint('up', flush=True)\nwhile True: signal.pause()\n")
    line(process, "up")
    assert not stacks.ask(process.pid, str(light.run))
    os.kill(process.pid, 12)
    line(process, "mine")
    assert light.board.read(0).count == 1


def test_a_stopped_process_is_frozen_and_answers_when_it_goes_on(light):
    process = light.start(USER + "step()\nprint('up', flush=True)\ninput()\n")
    line(process, "up")
    assert not stacks.frozen(process.pid)
    os.kill(process.pid, 19)
    eventually(lambda: stacks.frozen(process.pid))
    assert stacks.ask(process.pid, str(light.run))
    time.sleep(0.2)
    assert stacks.read(process.pid, str(light.run)) == ""
    os.kill(process.pid, 18)
    eventually(lambda: "in <module>" in stacks.read(process.pid, str(light.run)))
    assert not stacks.frozen(process.pid)


@pytest.mark.parametrize("threads", [0, 3, 150])
def test_the_main_thread_is_found_among_all(threads, light):
    code = USER + (
        "import threading, time\nready = threading.Semaphore(0)\n"
        "def side():\n    ready.release()\n    time.sleep(60)\n"
        f"for _ in range({threads}): threading.Thread(target=side, daemon=True).start()\n"
        f"for _ in range({threads}): ready.acquire()\n"
        "def deep(n):\n    if n: return deep(n - 1)\n    step()\n    print('up', flush=True)\n    input()\ndeep(3)\n"
    )
    process = light.start(code)
    line(process, "up")
    if threads < 100:  # it may still be in the line before
        eventually(lambda: stacks.source(stacks.frames(light.stack(process.pid))[0]) == "input()")
    for _ in range(2):  # asked again, the answer is one dump
        text = light.stack(process.pid)
        assert text.count("in side") == min(threads, 100)
    if threads < 100:  # faulthandler ends there, without the main thread
        frames = stacks.frames(text)
        assert [frame.function for frame in frames] == ["deep"] * 4 + ["<module>"]
        assert stacks.source(frames[0]) == "input()"
    assert len(text) <= stacks.LONGEST + 100


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
    for expected in ("two", "zero"):
        line(process, expected)
        counts.append(rank.board.read(0).count)
        process.stdin.write("\n")
        process.stdin.flush()
    assert counts == [10, 12]
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


def test_the_graphs_of_the_real_torch_show_life(rank):
    """On a CPU a graph cannot be made: what torch's class calls is put in place of the driver's part."""
    code = """
import torch
from torch._C import _CUDAGraph
_CUDAGraph.replay = lambda self: "replayed"
graph = object.__new__(torch.cuda.CUDAGraph)
graph._tracker = None
weight = torch.nn.Parameter(torch.ones(3))
weight.grad = torch.ones(3)
torch.optim.SGD([weight], lr=.1).step()
print("stepped", flush=True)
input()
assert graph.replay() is None  # as torch's own
print("replayed", torch.accelerator.Graph.replay.__code__.co_filename.endswith("rank_steps.py"), flush=True)
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


def test_the_children_of_spawn_are_the_rank_s_progress(light):
    code = """
import multiprocessing, time
from torch.optim.optimizer import step
def work():
    for _ in range(30): step()
    print('stepped\\n', end='', flush=True)  # in one write: two of them share the pipe
    time.sleep(60)
if __name__ == '__main__':
    for _ in range(2): multiprocessing.get_context('spawn').Process(target=work).start()
"""
    process = light.start(code)
    for _ in range(2):
        line(process, "stepped")
    steps = light.board.read(0)
    assert steps.count == 30
    assert steps.pid != process.pid
    asked = stacks.askable(str(light.run))
    assert {process.pid, steps.pid} < set(asked)
    assert len(asked) == 3
    assert stacks.frames(light.stack(steps.pid))[0].function == "work"


def test_a_board_that_cannot_be_made_is_one_clear_error(tmp_path):
    with pytest.raises(UserError, match=r"TMPDIR: .*/absent/steps: No such file or directory; fix: name a folder"):
        StepBoard(str(tmp_path / "absent"), 2)
