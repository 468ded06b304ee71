"""Why no host of a job is held, by how the job ended."""

from __future__ import annotations

import pytest

from algorun_client.aws.job_state import JobState, read_training
from algorun_client.follow.held_hosts import failed_without_hold, no_hold
from algorun_client.request.model import HOLD, Kind

RANK = "exit: rank 1 on algo-2, exit 3, attempt 1"
BEFORE = "no host was held: the job failed ({}) before its ranks had started"
OVER = "no host is held any more: the hold of 30 min 0 s is over"
OF_AWS = "no host was held: SageMaker has ended the job, and the launcher held nothing"


def state(status: str, failure: str = "", detail: str = "", hold_s: float = 1800.0) -> JobState:
    return JobState(kind=Kind.TRAINING, job="j", status=status, failure=failure, detail=detail, hold_s=hold_s)


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        (state("InProgress"), ""),
        (state("Stopping"), ""),
        (state("Completed"), "no host was held: the job has not failed"),
        (state("Stopped"), "no host is held: a stop ends a hold, and none begins after a stop"),
        (
            state("Stopped", detail="MaxRuntimeExceeded"),
            "no host is held: a hold ends with the time of the job (--max-run, --max-wait)",
        ),
        (state("Failed", RANK, hold_s=0), "no host was held: the job was sent without --hold-on-failure"),
        (state("Failed", RANK), OVER),
        (state("Failed", f"AlgorithmError: {RANK}, exit code: 3"), OVER),
        (state("Failed", f"what the script wrote\nsetup: no headline\n{RANK}"), OVER),
        (state("Failed", "AlgorithmError: , exit code: 1"), OVER),
        (state("Failed", "configuration: rank 0 on algo-1, exit 64, attempt 1: error: option --lr"), OVER),
        (state("Failed", "configuration: algo-1, exit 64: program: a.py does not exist"), BEFORE.format("configuration")),
        (state("Failed", "AlgorithmError: setup: algo-1, exit 64: pip install"), BEFORE.format("setup")),
        (state("Failed", "gate: algo-1, exit 65: hosts missing after 60 s: algo-2"), BEFORE.format("gate")),
        (state("Failed", "preflight: algo-2, exit 69: /dev/shm"), BEFORE.format("preflight")),
        (state("Failed", "CapacityError: Unable to provision"), OF_AWS),
        (state("Failed", "ClientError: the image does not exist"), OF_AWS),
    ],
)  # fmt: skip
def test_each_end_has_one_sentence(ended, why):
    assert no_hold(ended) == why
    had_none = ended.status == "Failed" and ended.hold_s > 0 and why != OVER
    assert failed_without_hold(ended) == (why if had_none else "")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1800", 1800.0),
        ("0.5", 0.5),
        ("0", 0.0),
        ("", 0.0),
        ("-5", 0.0),
        ("nan", 0.0),
        ("inf", 0.0),
        ("half an hour", 0.0),
    ],
)
def test_the_hold_of_a_job_is_read_from_its_environment(value, seconds):
    answer = {"TrainingJobName": "j", "TrainingJobStatus": "Failed", "Environment": {HOLD: value}}
    assert read_training(answer).hold_s == seconds
