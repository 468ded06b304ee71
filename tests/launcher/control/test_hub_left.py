"""Ranks that leave with 0: fine by themselves, the cause where others miss them."""

from __future__ import annotations

import pytest

from algorun.control.failures.failure import Failure, Raised
from algorun.control.hang.hang import Stack, StackFrame
from algorun.control.hub.failure_reports import MISSED_S
from tests.launcher.jobs import LIMITS, MISSED, Job, finish, running


def leave(job: Job, rank: int, step: int = 20) -> None:
    """This rank of a job with two ranks on each host ends with 0."""
    host = job.hosts[rank // 2]
    job.act(host, job.members[host].rank_exited(job.now, rank % 2, 0, "", step))
    job.settle()


def raises(job: Job, rank: int, message: str = MISSED, *, kind: str = "RuntimeError") -> None:
    host = job.hosts[rank // 2]
    raised = Raised(rank, 1, job.now, kind, message, f"Traceback (most recent call last):\n{kind}: {message}")
    job.act(host, job.members[host].rank_raised(job.now, rank % 2, raised, is_rank=True))
    job.settle()


def verdict(job: Job) -> Failure:
    """The one failure of all hosts, once the time for it has passed."""
    job.pass_time(LIMITS.blame_s + MISSED_S + 0.1)
    (failure,) = {verdict.failure for verdict in job.verdicts.values()}
    assert len(job.verdicts) == len(job.hosts)
    assert failure is not None
    return failure


def test_the_rank_that_left_is_the_cause_where_the_others_only_miss_it():
    job = running(2)
    leave(job, 3)
    for rank in (2, 0, 1):
        raises(job, rank)
    failure = verdict(job)
    assert failure.headline() == (
        "left: rank 3 on algo-2 left with 0 after step 20 while 3 ranks still trained, attempt 1: "
        f"rank 2 on algo-2, exit 1: RuntimeError: {MISSED}"
    )
    assert (failure.code, failure.step) == (1, 20)
    assert f"RuntimeError: {MISSED}" in failure.traceback
    assert "split unevenly" in failure.text()


@pytest.mark.parametrize("later_s", [0.1, LIMITS.blame_s - 0.1, LIMITS.blame_s + MISSED_S - 0.1])
def test_its_end_may_be_heard_after_the_others_trouble(later_s):
    """Its connections close first, and its interpreter takes its time."""
    job = running(2)
    raises(job, 0)
    job.pass_time(later_s)
    assert not job.verdicts
    leave(job, 3)
    assert verdict(job).rank == 3


def test_what_was_waited_for_ends_the_wait():
    job = running(2)
    raises(job, 0)
    job.pass_time(LIMITS.blame_s + 0.5)
    leave(job, 3)
    job.pass_time(0.0)
    assert len(job.verdicts) == 2


def test_a_late_exit_status_is_the_cause_as_well():
    job = running(2)
    raises(job, 0)
    job.pass_time(LIMITS.blame_s + 1)
    job.act("algo-2", job.members["algo-2"].rank_exited(job.now, 1, 7, "bad input in record 17"))
    job.settle()
    assert verdict(job).headline() == "exit: rank 3 on algo-2, exit 7, attempt 1: bad input in record 17"


def test_nobody_is_waited_for_where_all_have_failed_or_left():
    job = running(2)
    for rank in range(4):
        raises(job, rank)
    job.pass_time(LIMITS.blame_s + 0.1)
    assert {v.failure.rank for v in job.verdicts.values()} == {0}


def test_a_real_cause_wins():
    job = running(2)
    leave(job, 3)
    raises(job, 0)
    raises(job, 1, "bad batch 17", kind="ValueError")
    assert verdict(job).headline() == "exception: rank 1 on algo-1, exit 1, attempt 1: ValueError: bad batch 17"


def test_a_failed_engine_has_missed_no_rank():
    job = running(2)
    leave(job, 3)
    broken = Failure("engine", "algo-1", 1, "mpirun ended with 1 before its ranks")
    job.act("algo-1", job.members["algo-1"].broken(job.now, broken))
    job.settle()
    assert verdict(job).kind == "engine"


def test_a_rank_that_raised_and_then_leaves_with_0_is_none_that_left():
    job = running(2)
    raises(job, 2)
    leave(job, 2)
    assert verdict(job).kind == "exception"


def test_ranks_that_leave_early_are_fine_where_the_others_end_well():
    job = running(2)
    for rank in (3, 2, 0):
        leave(job, rank)
        job.pass_time(60)
    job.act("algo-2", job.members["algo-2"].all_ranks_gone(job.now))
    finish(job, "algo-1")
    job.settle()
    assert {v.kind for v in job.verdicts.values()} == {"ok"}


def test_the_first_of_several_is_named():
    job = running(2)
    leave(job, 3)
    leave(job, 2, step=21)
    raises(job, 0)
    assert (
        "rank 3 on algo-2 left with 0 after step 20, as did 1 other, while 2 ranks still trained"
        in verdict(job).headline()
    )


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("torch.distributed.DistStoreError", "wait timeout after 300000ms, keys: /default_pg/0//cpu//0/3"),
        (
            "torch.distributed.DistNetworkError",
            "The client socket has timed out after 600000ms while trying to connect",
        ),
    ],
)
def test_one_that_left_before_the_others_met(kind, message):
    job = running(2)
    leave(job, 3, step=0)
    job.pass_time(300)
    raises(job, 1, message, kind=kind)
    assert verdict(job).headline() == (
        f"left: rank 3 on algo-2 left with 0 while 3 ranks still ran, attempt 1: rank 1 on algo-1, exit 1: {kind}: {message}"
    )


def test_the_code_is_that_of_the_rank_in_trouble():
    """NCCL's watchdog aborts its process."""
    job = running(2)
    leave(job, 3)
    words = "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=21, OpType=ALLREDUCE)"
    job.act("algo-1", job.members["algo-1"].rank_exited(job.now, 0, -6, words, 20))
    job.settle()
    failure = verdict(job)
    assert (failure.rank, failure.code) == (3, 134)
    assert "rank 0 on algo-1, exit 134 (SIGABRT): " in failure.headline()


def test_in_a_stop_nothing_changes():
    job = running(2)
    job.act("algo-2", job.members["algo-2"].stop_asked(job.now, "SIGTERM on algo-2"))
    leave(job, 3)
    raises(job, 0)
    for host in job.hosts:
        finish(job, host)
    job.settle()
    job.pass_time(20)
    assert {(v.kind, v.code) for v in job.verdicts.values()} == {("stopped", 0)}


def test_another_attempt_follows_and_begins_with_all_ranks():
    job = running(2, restarts=1)
    leave(job, 3)
    raises(job, 0)
    job.pass_time(LIMITS.blame_s + 0.1)
    job.settle()
    assert all(begun == [0, 1] for begun in job.begun.values())
    raises(job, 0)
    assert "the last failure: exception: rank 0 on algo-1" in verdict(job).message


WAIT = StackFrame("/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce")
OWN = StackFrame("/opt/ml/code/train.py", 17, "step")


def hang_of(job: Job, *busy: int) -> Failure:
    """Rank 3 has left; of the others these work, and the rest wait."""

    def stacks(host: str) -> list[Stack]:
        first = 2 * job.hosts.index(host)
        ranks = [rank for rank in (first, first + 1) if rank != 3]
        return [Stack(rank, host, 20, (OWN,) if rank in busy else (WAIT, OWN)) for rank in ranks]

    job.stacks = stacks
    leave(job, 3)
    job.pass_time(60)
    job.act("algo-1", job.members["algo-1"].hangs(job.now, 60.0))
    job.settle()
    return verdict(job)


def test_a_hang_in_which_all_wait_is_that_of_the_rank_that_left():
    failure = hang_of(running(2))
    assert failure.headline() == (
        "hang: rank 3 on algo-2 left with 0 after step 20 while 3 ranks still trained, attempt 1: "
        "rank 0 on algo-1: no step for 60 s after step 20: all_reduce (distributed_c10d.py:9), called at train.py:17 in step"
        " while 2 others wait in all_reduce (distributed_c10d.py:9)"
    )
    assert failure.code == 67
    assert "all_reduce" in failure.traceback
    assert failure.hint.endswith("the stacks of all ranks are in output/data, stacks-rank-*.txt")


def test_a_rank_at_work_stays_the_one_to_blame_and_the_other_is_mentioned():
    assert hang_of(running(2), 1).headline() == (
        "hang: rank 1 on algo-1, exit 67, attempt 1, step 20: no step for 60 s after step 20: step at train.py:17"
        " while 2 others wait in all_reduce (distributed_c10d.py:9); rank 3 on algo-2 had left with 0 after step 20"
    )


def test_an_error_that_says_what_to_do_about_a_missing_peer_stays_the_cause():
    """smdistributed.modelparallel knows that rank 0 alone evaluates; the others rightly ended before it."""
    job = running(2)
    for rank in (3, 2, 1):
        leave(job, rank)
    advice = "test_step: another rank has ended while rank 0 calls it; fix: call it on every rank"
    chain = (
        f"Traceback (most recent call last):\nRuntimeError: {MISSED}\n\n"
        f"Traceback (most recent call last):\nUserError: {advice}"
    )
    job.act(
        "algo-1",
        job.members["algo-1"].rank_raised(
            job.now, 0, Raised(0, 1, job.now, "UserError", advice, chain, explains_itself=True), is_rank=True
        ),
    )
    job.settle()
    assert verdict(job).headline() == f"exception: rank 0 on algo-1, exit 1, attempt 1: UserError: {advice}"


IMPROPERLY = """\
--------------------------------------------------------------------------
{program} has exited due to process rank {rank} with PID 9951 on
node vm exiting improperly. There are three reasons this could occur:
2. this process called "init", but exited without calling "finalize".
"""
SOCKET = """\
WARNING: Open MPI failed to TCP connect to a peer MPI process.  This
should not happen.
[vm:00000] *** An error occurred in Socket closed
[vm:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
"""


def engine_says(job: Job, text: str) -> None:
    failure = Failure("engine", "algo-1", 1, "mpirun ends the ranks", traceback=text)
    job.act("algo-1", job.members["algo-1"].broken(job.now, failure))
    job.settle()


def exits(job: Job, rank: int, code: int, tail: str = "") -> None:
    host = job.hosts[rank // 2]
    job.act(host, job.members[host].rank_exited(job.now, rank % 2, code, tail))
    job.settle()


@pytest.mark.parametrize(
    "text", [IMPROPERLY.format(program="mpirun", rank=3), IMPROPERLY.format(program="prterun", rank=3), SOCKET]
)
@pytest.mark.parametrize("silent", [True, False])
def test_a_rank_that_has_left_without_finalize_is_the_cause_where_mpi_ends_the_others(text, silent):
    job = running(2)
    if "improperly" in text:
        leave(job, 2, step=0)
    leave(job, 3, step=0)
    if silent:
        exits(job, 0, 14)
    engine_says(job, text)
    failure = verdict(job)
    assert failure.headline().startswith("left: rank 3 on algo-2 left with 0")
    assert failure.code == (14 if silent else 1)


def test_a_rank_with_words_of_its_own_stays_the_cause_beside_one_that_has_left():
    job = running(2)
    leave(job, 3)
    exits(job, 0, 7, "bad input in record 17")
    engine_says(job, SOCKET)
    assert verdict(job).headline() == "exit: rank 0 on algo-1, exit 7, attempt 1: bad input in record 17"


def test_a_silent_exit_beside_a_rank_that_has_left_is_the_cause_if_mpi_does_not_blame_that_one():
    job = running(2)
    leave(job, 3)
    exits(job, 0, 7)
    engine_says(job, "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD with errorcode 7.")
    assert verdict(job).headline() == "exit: rank 0 on algo-1, exit 7, attempt 1: no message on stderr"
