"""Inside a rank: its processes show their stacks when asked, and no other process is signalled."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from algorun.host.ranks import stacks

from .rank_processes import USER, eventually, line


def test_a_program_that_was_exec_ed_is_never_signalled(light):
    process = light.start(USER + "step()\nimport os\nprint('up', flush=True)\nos.execvp('sleep', ['sleep', '60'])\n")
    line(process, "up")
    eventually(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
    assert process.pid in stacks.askable(str(light.run))
    assert not stacks.ask(process.pid, str(light.run))
    assert process.poll() is None


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
    assert stacks.read_stacks(process.pid, str(light.run)) == ""
    os.kill(process.pid, 18)
    eventually(lambda: "in <module>" in stacks.read_stacks(process.pid, str(light.run)))
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


def test_the_children_of_spawn_are_the_rank_s_progress(light):
    code = """
import multiprocessing, time
from torch.optim.optimizer import step
def work(at):
    while time.monotonic() < at: pass  # both make their first step at once
    for _ in range(30): step()
    print('stepped\\n', end='', flush=True)  # in one write: two of them share the pipe
    time.sleep(60)
if __name__ == '__main__':
    spawn = multiprocessing.get_context('spawn')
    at = time.monotonic() + 0.5
    for _ in range(2): spawn.Process(target=work, args=(at,)).start()
"""
    process = light.start(code)
    for _ in range(2):
        line(process, "stepped")
    steps = light.board.read(0)
    assert steps.count == 30
    assert steps.pid != process.pid
    asked = stacks.askable(str(light.run))
    assert {process.pid, steps.pid} < set(asked)
    assert len(asked) == 4, "the rank, its two children, and the resource tracker of multiprocessing"
    assert stacks.frames(light.stack(steps.pid))[0].function == "work"
