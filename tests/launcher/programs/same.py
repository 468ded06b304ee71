"""Rank 1 fails in every attempt before the third, as asked: `same.py HOW`; the others wait for it to fail, and with `hang` make steps.

Each way gives the same failure in each attempt, but for those named `moving` and `saving`.
"""

import os
import signal
import sys
import time
from pathlib import Path

how, attempt, rank = sys.argv[1], int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])


def steps(count):
    import torch

    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(count):
        weight.grad = torch.ones(2)
        optimizer.step()


def fail():
    if how == "exit":
        sys.exit(7)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "network":
        raise ConnectionError("huggingface.co does not answer")
    if how == "saving":
        Path(os.environ["SAGEMAKER_BASE_DIR"], "checkpoints", f"step-{attempt}").write_text("state")
    if how in ("step", "moving", "hang"):
        steps(3 + attempt * (how == "moving"))
    if how == "hang":
        time.sleep(1000)
    raise ValueError("bad record 17")


if attempt < 2:
    if rank == 1:
        fail()
    while how == "hang":
        steps(1)
        time.sleep(0.05)
    time.sleep(60)
