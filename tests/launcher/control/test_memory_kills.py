"""Workers that the kernel has killed for memory on a host without ranks: the root cause names host and memory."""

from __future__ import annotations

import pytest

from algorun.control.failures.failure import Failure
from algorun.control.hub.memory_kills import FEWER_TASKS, MemoryKills
from algorun.control.wire.messages import Fail, MemoryKill
from tests.launcher.jobs import running

TEXT = "the kernel killed 1 process (peak 1.46 GiB of a limit of 1.46 GiB)"
DIED = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
CRASHED = "ray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing this task."


def hint(host: str, more: str = "") -> str:
    return f"out of memory on {host}: {TEXT}{more}; {FEWER_TASKS}"


def of_driver(message: str, **more: str | int) -> Failure:
    return Failure("exception", "algo-1", 1, message, 0, **more)


@pytest.mark.parametrize(
    ("failure", "told", "says"),
    [
        (of_driver(f"{DIED} (Holder, pid 97 on algo-2)"), ["algo-2", "algo-3"], hint("algo-2")),
        (of_driver(f"{DIED} (Holder, pid 97 on algo-2)"), ["algo-3"], ""),
        (of_driver(CRASHED), ["algo-3", "algo-2"], hint("algo-2", " (also on algo-3)")),
        # Ray Train's exception has another one as its cause.
        (of_driver("ray.train.WorkerGroupError: failed", traceback=f"Traceback\n{DIED}"), ["algo-2"], hint("algo-2")),
        (of_driver("ValueError: bad sample (f, pid 97 on algo-2)"), ["algo-2"], ""),
        (of_driver(CRASHED, hint="known"), ["algo-2"], "known"),
        (Failure("node", "algo-2", 66, "Ray's process raylet ended by signal 9"), ["algo-2"], hint("algo-2")),
        (Failure("node", "algo-2", 66, "Ray's process raylet ended by signal 9"), ["algo-1"], ""),
        (Failure("node", "algo-2", 66, "ray start ended with 1: no head"), ["algo-2"], ""),
    ],
)
def test_only_a_process_that_vanished_on_a_host_that_has_told_gets_the_hint(failure, told, says):
    kills = MemoryKills()
    for host in told:
        kills.heard(host, TEXT)
    assert kills.explain(failure).hint == says


@pytest.mark.parametrize(("attempt", "says"), [(0, hint("algo-2")), (1, "")])
def test_the_verdict_of_all_hosts_has_the_hint_of_a_host_without_ranks(attempt, says):
    """The report may come after the driver's failure, but not of another attempt."""
    job = running(2)
    job.hear("algo-1", Fail(of_driver(f"{DIED} (Holder, pid 97 on algo-2)")))
    job.hear("algo-2", MemoryKill(attempt, TEXT))
    job.pass_time(2.0)
    job.settle()
    assert [verdict.failure.hint for verdict in job.verdicts.values()] == [says, says]


def test_an_attempt_knows_nothing_of_the_one_before():
    job = running(2, restarts=1)
    job.hear("algo-2", MemoryKill(0, TEXT))
    for _ in range(2):
        job.hear("algo-1", Fail(of_driver(CRASHED, attempt=job.hub.attempts.number)))
        job.pass_time(2.0)
        job.settle()
    assert [verdict.failure.hint for verdict in job.verdicts.values()] == ["", ""]
