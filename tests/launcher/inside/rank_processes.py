"""Processes as a supervisor starts its ranks, with the run folder and nothing else of a launcher."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from algorun.host.measuring import step_counter
from algorun.host.ranks import stacks
from tests.conftest import ROOT, clean_environ

LIMIT_S = 90
GLOO = "[Gloo] Rank "
# How a dump ends: with the main thread's outermost frame, or cut short by faulthandler.
WHOLE = re.compile(r"( in <module>|^ *\.\.\.)\n\Z", re.MULTILINE)

USER = "from torch.optim.optimizer import step\n"  # how the scripts of tests begin


def eventually(condition, what="", limit_s=LIMIT_S):
    """Waits until the condition holds, and returns what it gave."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, what or condition
        time.sleep(0.02)
    return value


# The part of torch that the counter knows, for what has nothing to do with torch itself: it is there in no time.
OPTIMIZER = """
hooks = []
register_optimizer_step_post_hook = hooks.append
def step():
    for hook in hooks:
        hook(None, (), {})
"""


def write_light_torch(folder: Path) -> None:
    """A torch of the user's own folder, which has optimizer steps and nothing else."""
    (folder / "torch" / "optim").mkdir(parents=True)
    for name in ("__init__.py", "optim/__init__.py"):
        (folder / "torch" / name).touch()
    (folder / "torch" / "optim" / "optimizer.py").write_text(OPTIMIZER)


class RankProcesses:
    """A run folder and the processes of its ranks; `close` ends them."""

    def __init__(self, folder: Path, ranks: int = 1) -> None:
        self.run = folder / "run"
        self.code = folder / "code"
        for path in (self.run, self.code):
            path.mkdir()
        self.board = step_counter.StepBoard(str(self.run), ranks)
        self.started: list[subprocess.Popen] = []

    def start(self, text: str, local_rank: int = 0, name: str = "entry.py", **environ: str) -> subprocess.Popen:
        """Starts a script of this text as the rank; its output is a pipe of text."""
        (self.code / name).write_text(text)
        argv = ["bash", name] if name.endswith(".sh") else [sys.executable, "-u", name]
        ours = {
            "ALGORUN_RUN_DIR": str(self.run),
            "ALGORUN_SHIM": str(ROOT / "launcher/algorun/inside/rank_shim.py"),
            "ALGORUN_RANK": str(local_rank),
            "ALGORUN_LOCAL_RANK": str(local_rank),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        process = subprocess.Popen(
            argv, cwd=self.code, env=clean_environ(**ours, **environ), text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.started.append(process)
        return process

    def stack(self, pid: int) -> str:
        """Asks a process and waits for its whole dump, which comes in many small writes."""
        assert stacks.ask(pid, str(self.run))
        text = ""

        def whole() -> bool:
            nonlocal text
            before, text = text, stacks.read_stacks(pid, str(self.run))
            return text == before and WHOLE.search(text) is not None

        eventually(whole, "no whole stack")
        return text

    def close(self) -> None:
        for process in self.started:
            _kill(process)
            process.communicate(timeout=LIMIT_S)
        self.board.close()


def ended(process):
    """The output of a process, which has to end with 0."""
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, out
    return out


def without_gloo(text):
    """A program's output without what Gloo writes of itself on torch 2.10."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(GLOO))


def line(process, expected):
    """Asserts that this is the next line of a process. It is ended if it writes another one, or none in time."""
    late = threading.Timer(LIMIT_S, _kill, (process,))
    late.start()
    text = process.stdout.readline()
    while text.startswith(GLOO):
        text = process.stdout.readline()
    late.cancel()
    if text.strip() != expected:
        _kill(process)  # it may wait for a word of the test, which would wait for its last one
        raise AssertionError(text + process.stdout.read())


def _kill(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
