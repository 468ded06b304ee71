"""Runs a program of tests/compat/programs on ranks, and reads what each says."""

from __future__ import annotations

import json
import random
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.training_runs import Ranks

PROGRAMS = Path(__file__).parent / "programs"
MARK = "SAYS "
few_microbatches = pytest.mark.skipif(
    torch.__version__.startswith("2.10."), reason="torch 2.10 has no schedule for fewer microbatches than stages"
)


def say(value: Any) -> None:
    """What a rank's program tells its test."""
    print(MARK + json.dumps(value), flush=True)


def quiet_port() -> int:
    """A free port below those that outgoing connections get.

    A rank that tries to reach rank 0's port before rank 0 listens there may else be given this port as its own end, and
    be connected with itself.
    """
    while True:
        port = random.randint(15_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def run(folder: Path, program: str, *args: str, ranks: int = 2, parameters: dict[str, Any] | None = None) -> list[Any]:
    """What every rank has said, by rank; all have ended with 0. `parameters` are the job's mp_parameters."""
    given = {"partitions": 2, "microbatches": 2, "ddp": True} | (parameters or {})
    job = Ranks(
        folder,
        1,
        ranks,
        list(args),
        program=str(PROGRAMS / program),
        SM_HP_MP_PARAMETERS=json.dumps(given),
        CUDA_VISIBLE_DEVICES="",
        MASTER_PORT=str(quiet_port()),
    )
    try:
        codes = job.codes()
    finally:
        job.kill()
    assert codes == [0] * ranks, "\n".join(job.text(rank) for rank in range(ranks))
    lines = [[line for line in job.text(rank).splitlines() if line.startswith(MARK)] for rank in range(ranks)]
    return [json.loads(found[-1].removeprefix(MARK)) for found in lines]
