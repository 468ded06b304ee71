"""Runs a program of tests/compat/programs on ranks, and reads what each says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.train.training_runs import Ranks

PROGRAMS = Path(__file__).parent / "programs"
MARK = "SAYS "


def say(value: Any) -> None:
    """What a rank's program tells its test."""
    print(MARK + json.dumps(value), flush=True)


def staged_model(model: Any) -> Any:
    """The stages of a smp.DistributedModel on this rank."""
    return model._placed.staged


def started(
    folder: Path, program: str, *args: str, hosts: int = 1, slots: int = 2, parameters: dict[str, Any], **environ: str
) -> Ranks:
    """The ranks of a program; `parameters` are the job's mp_parameters."""
    return Ranks(
        folder,
        hosts,
        slots,
        list(args),
        program=str(PROGRAMS / program),
        SM_HP_MP_PARAMETERS=json.dumps(parameters),
        CUDA_VISIBLE_DEVICES="",
        **environ,
    )


def run(folder: Path, program: str, *args: str, ranks: int = 2, parameters: dict[str, Any] | None = None) -> list[Any]:
    """What every rank of one host has said, by rank; all have ended with 0."""
    given = {"partitions": 2, "microbatches": 2, "ddp": True} | (parameters or {})
    job = started(folder, program, *args, slots=ranks, parameters=given)
    try:
        codes = job.codes()
    finally:
        job.kill()
    assert codes == [0] * ranks, "\n".join(job.text(rank) for rank in range(ranks))
    lines = [[line for line in job.text(rank).splitlines() if line.startswith(MARK)] for rank in range(ranks)]
    return [json.loads(found[-1].removeprefix(MARK)) for found in lines]
