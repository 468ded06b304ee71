"""The processes that decode images ahead of their use."""

import contextlib
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from algorun_train.data.folder import list_images
from algorun_train.data.image_decoding import decode
from algorun_train.data.images import OnDisk
from algorun_train.data.sampler import Batching, Epochs
from tests.train.data.tar_files import source
from tests.train.training_runs import SMALL


def test_a_killed_decoding_process_is_named_and_leaves_no_other(tars):
    images = source("--train", str(tars), "--cache-mb", "0")
    stream = images.training(Epochs(0, 0, 3, 0), Batching(4, 1, 0, 1))
    next(stream)
    processes = decoding()
    assert len(processes) == 2
    os.kill(processes[0], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="decodes images ended with -9"):
        list(stream)
    assert decoding() == []


def decoding() -> list[int]:
    """The decoding processes of this one."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if b"decode_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_decoding_processes_end_with_a_rank_that_is_killed(ranks, tars):
    run = ranks(
        1,
        1,
        *SMALL[:-6],
        "--epochs",
        "500",
        "--train",
        str(tars),
        "--cache-mb",
        "0",
        "--image-size",
        "8",
        hold="epoch: 1/",
    )
    run.wait_for("epoch: 1/")
    rank = run.processes[0].pid
    children = [int(pid) for pid in Path(f"/proc/{rank}/task/{rank}/children").read_text().split()]
    assert children
    run.signal(signal.SIGKILL)
    run.codes()
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_larger_batches_follow_smaller_ones_in_order(tars):
    listing = list_images("train", tars)
    images = OnDisk(listing, 8, 2, torch.device("cpu"))
    wanted = [np.arange(n) for n in (1, 2, 9, 3, 0, 30, 4, 4, 4, 4, 4, 4)]
    for indices, pixels in images.batches(wanted, lambda each: each):
        expected = [decode(listing, int(i), 8) for i in indices]
        assert np.array_equal(pixels.numpy(), np.array(expected, np.uint8).reshape(-1, 8, 8, 3))
