"""Which exit code a command leaves with after a job, and whose code it is."""

from __future__ import annotations

import pytest

from algorun.control.failures.failure import Failure
from algorun_client.aws.job_state import JobState
from algorun_client.common.codes import Source
from algorun_client.follow.outcome import Ending, judge, own_code, root_cause
from algorun_client.request.model import Kind


def ended(status: str, failure: str = "", detail: str = "", message: str = "", kind: Kind = Kind.TRAINING) -> JobState:
    return JobState(kind=kind, job="job", status=status, failure=failure, detail=detail, exit_message=message)


OURS = "exit: rank 3 on algo-2, exit 3, attempt 1: sys.exit(3)"

TABLE = [
    # state, code, ending, source, known
    (ended("Completed"), 0, Ending.COMPLETED, Source.JOB, True),
    (ended("Failed", f"AlgorithmError: {OURS}, exit code: 3"), 3, Ending.FAILED, Source.JOB, True),
    (ended("Failed", f"AlgorithmError: {OURS}\nTraceback .. exit code: 9"), 3, Ending.FAILED, Source.JOB, True),
    (ended("Failed", f"AlgorithmError: the script's own words\n{OURS}\nhint: x"), 3, Ending.FAILED, Source.JOB, True),
    (ended("Failed", "AlgorithmError: ExecuteUserScriptError:\nx, exit code: 42"), 42, Ending.FAILED, Source.JOB, True),
    (ended("Failed", "AlgorithmError: , exit code: 137"), 137, Ending.FAILED, Source.JOB, True),
    (ended("Failed", "AlgorithmError: preflight: algo-1, exit 69: no GPU"), 69, Ending.FAILED, Source.JOB, True),
    (ended("Failed", "AlgorithmError: signal: rank 0 on algo-1, exit 139 (SIGSEGV), attempt 1"), 139, Ending.FAILED, Source.JOB, True),
    (ended("Failed", "AlgorithmError: exit: rank 0 on algo-1, exit 75, attempt 1"), 75, Ending.FAILED, Source.JOB, True),
    (ended("Failed", "AlgorithmError: something else"), 1, Ending.FAILED, Source.JOB, False),
    (ended("Failed", "InternalServerError: We encountered an internal error."), 1, Ending.FAILED, Source.JOB, False),
    (ended("Failed", "ClientError: Data download failed: exit 5 of nothing"), 1, Ending.FAILED, Source.JOB, False),
    (ended("Failed", ""), 1, Ending.FAILED, Source.JOB, False),
    (ended("Failed", "AlgorithmError: x, exit code: 0"), 1, Ending.FAILED, Source.JOB, False),
    (ended("Failed", "CapacityError: Unable to provision requested ML compute capacity."), 73, Ending.CAPACITY, Source.CLIENT, True),
    (ended("Stopped", detail="Stopped"), 74, Ending.STOPPED, Source.CLIENT, True),
    (ended("Stopped", detail="MaxRuntimeExceeded"), 74, Ending.OUT_OF_TIME, Source.CLIENT, True),
    (ended("Stopped", detail="MaxWaitTimeExceeded"), 74, Ending.OUT_OF_TIME, Source.CLIENT, True),
    (ended("Failed", "AlgorithmError: See job logs, exit code: 1", message=OURS, kind=Kind.PROCESSING), 3, Ending.FAILED, Source.JOB, True),
    (ended("Failed", "AlgorithmError: See job logs, exit code: 7", message="words", kind=Kind.PROCESSING), 7, Ending.FAILED, Source.JOB, True),
]  # fmt: skip


@pytest.mark.parametrize(("state", "code", "ending", "source", "known"), TABLE)
def test_outcome(state, code, ending, source, known):
    outcome = judge(state)
    assert (outcome.code, outcome.kind, outcome.source, outcome.code_known) == (code, ending, source, known)
    assert f"source={source}" in outcome.line("job")
    assert ("code unknown" in outcome.line("job")) is not known


@pytest.mark.parametrize("code", [1, 3, 64, 70, 137, 139, 255])
@pytest.mark.parametrize("rank", [None, 0, 117])
def test_the_code_is_found_in_the_launchers_own_text(code, rank):
    failure = Failure("exit", "algo-12", code, "a message, exit 9: here", rank=rank, step=7, attempts=3)
    reason = f"AlgorithmError: {failure.text()}, exit code: 8"
    assert own_code(reason[:1024]) == code


def test_the_root_cause_stands_without_what_sagemaker_puts_around_it():
    assert root_cause(f"AlgorithmError: {OURS}\nhint: this, exit code: 3") == f"{OURS}\nhint: this"


def test_a_job_that_runs_has_no_outcome():
    with pytest.raises(ValueError, match="has not ended"):
        judge(ended("InProgress"))
