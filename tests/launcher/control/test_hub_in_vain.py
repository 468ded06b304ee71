"""Ranks that only waited in vain: those that still live are asked for their stacks before anybody is blamed."""

from __future__ import annotations

import pytest

from algorun.control.failures.failure import Failure, Raised
from algorun.control.hang.call import CollectiveCall
from algorun.control.hang.hang import Stack, StackFrame
from algorun.control.member.member import MemberState
from algorun.control.wire.messages import ANSWER_S
from tests.launcher.jobs import LIMITS, Job, finish, running

WATCHDOG = (
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: "
    "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
    "Timeout(ms)=600000) ran for 600096 milliseconds before timing out.\n"
)
SCRIPT = StackFrame("/opt/ml/code/train.py", 17, "load")
WAITS = StackFrame("/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce")
STEP = StackFrame("/opt/ml/code/train.py", 20, "step")
VERDICT_S = LIMITS.blame_s + 3 + 0.1  # the blame window, and the time for ranks of which nothing is known


class Living(Job):
    """Only ranks that live answer. `sleeper` works while the others wait."""

    sleeper = 3

    def stacks(self, host: str) -> list[Stack]:
        member, first = self.members[host], 2 * self.hosts.index(host)
        live = [first + local for local in (0, 1) if member.ranks.running(local) is not None]
        return [Stack(r, host, 41, (SCRIPT,) if r == self.sleeper else (WAITS, STEP)) for r in live]


def job(count: int = 2, sleeper: int = 3, restarts: int = 0) -> Living:
    made = Living(count, restarts=restarts)
    made.sleeper = sleeper
    for host in made.hosts:
        made.join(host)
    made.settle()
    assert all(member.state is MemberState.RUN for member in made.members.values())
    return made


def abort(job: Job, *ranks: int, tail: str = WATCHDOG) -> None:
    """The watchdog of these ranks ends them."""
    for rank in ranks:
        host = job.hosts[rank // 2]
        job.act(host, job.members[host].rank_exited(job.now, rank % 2, -6, tail, 41))
    job.settle()


def verdict(job: Job):
    (failure,) = {each.failure for each in job.verdicts.values()}
    return failure


def test_the_rank_that_the_others_waited_for_is_named():
    ranks = job()
    abort(ranks, 0, 1, 2)
    assert not ranks.verdicts
    ranks.pass_time(VERDICT_S)
    failure = verdict(ranks)
    assert failure.headline() == (
        "hang: rank 3 on algo-2, exit 67, attempt 1, step 41:"
        " load at train.py:17 while rank 0 on algo-1 and 2 others timed out"
    )
    assert 'File "/opt/ml/code/train.py", line 17, in load' in failure.traceback
    others = [f"rank {rank} on algo-{1 + rank // 2}, exit 134 (SIGABRT)" for rank in (0, 1, 2)]
    for line, each in zip(sorted(failure.others.splitlines()), others, strict=True):
        assert line.startswith(
            f"then: signal: {each}, attempt 1: Watchdog caught collective operation timeout: WorkNCCL("
        )


def test_ranks_that_still_wait_are_not_blamed():
    ranks = job(3, sleeper=5)
    abort(ranks, 2)
    ranks.pass_time(VERDICT_S)
    assert verdict(ranks).message == (
        "load at train.py:17 while rank 2 on algo-2 timed out and 4 others wait in all_reduce (distributed_c10d.py:9)"
    )


def test_where_all_that_live_wait_too_the_first_time_out_stays():
    ranks = job(sleeper=-1)
    abort(ranks, 2)
    ranks.pass_time(VERDICT_S)
    failure = verdict(ranks)
    assert (failure.kind, failure.rank, failure.code) == ("signal", 2, 134)
    assert failure.hint == "the stacks of the ranks that still lived are in output/data, stacks-rank-*.txt"


def at_one_line(source: str, below: dict[int, tuple[StackFrame, ...]] | None = None) -> Living:
    """Ranks 1, 2 and 3 live, all at the same line of the script; `below` are frames of libraries that it called."""
    ranks = job()
    ranks.stacks = lambda host: [
        Stack(rank, host, 41, (*(below or {}).get(rank, ()), SCRIPT), source=source)
        for rank in (1, 2, 3)
        if host == ranks.hosts[rank // 2]
    ]
    abort(ranks, 0)
    ranks.pass_time(VERDICT_S)
    return ranks


@pytest.mark.parametrize("source", ["if loss > limit:", "x = x.to(device)", ""])
def test_nobody_is_blamed_where_all_that_live_are_at_one_line(source):
    """Each of them waits for its GPU there, whatever the line does."""
    failure = verdict(at_one_line(source))
    assert (failure.kind, failure.rank, failure.code) == ("signal", 0, 134)


def test_one_line_that_needs_no_gpu_is_blamed():
    assert verdict(at_one_line("record = file.read(n)")).headline().startswith("hang: rank 1 on algo-1, exit 67")


GLOO = "RuntimeError: [/src/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete\n"


def alone(source: str, tail: str = WATCHDOG, beside: tuple[StackFrame, ...] = ()) -> Failure:
    """The verdict where rank 3 lives on, at this line of the script; with `beside` rank 2 too, and is there."""
    ranks = job()
    living = [Stack(3, "algo-2", 41, (SCRIPT,), source=source)]
    living += [Stack(2, "algo-2", 41, beside)] if beside else []
    ranks.stacks = lambda host: living if host == "algo-2" else []
    abort(ranks, *((0, 1) if beside else (0, 1, 2)), tail=tail)
    ranks.pass_time(VERDICT_S)
    return verdict(ranks)


OF_A_VALUE = [
    "if loss > limit:",
    "elif loss != loss:",
    "while error >= tolerance:",
    "assert loss < 1e3, step",
    "if (loss > limit).any() and step:",
    "if found_inf:",
    "if not self.found[0]:",
    "best = loss if loss < best else best",
]


@pytest.mark.parametrize("source", OF_A_VALUE)
def test_the_only_rank_that_lives_is_not_blamed_where_its_line_reads_a_value(source):
    """On a GPU it waits there, as `loss.item()` does, for the collective that the others have left."""
    failure = alone(source)
    assert (failure.kind, failure.code) == ("signal", 134)
    assert failure.rank != 3
    assert failure.hint == "the stacks of the ranks that still lived are in output/data, stacks-rank-*.txt"
    assert alone(source, beside=(WAITS, STEP)).kind == "signal"


@pytest.mark.parametrize("source", OF_A_VALUE)
def test_a_rank_that_does_something_else_is_blamed_beside_one_whose_line_reads_a_value(source):
    failure = alone(source, beside=(StackFrame("/opt/ml/code/data.py", 3, "load"),))
    assert (failure.kind, failure.rank) == ("hang", 2)


@pytest.mark.parametrize("source", OF_A_VALUE)
def test_without_gpus_no_line_waits_for_a_value(source):
    assert (alone(source, tail=GLOO).kind, alone(source, tail=GLOO).rank) == ("hang", 3)


@pytest.mark.parametrize(
    "source",
    ["while not os.path.exists(flag):", "if read(sensor) > limit:", "while True:", "while not done:", "total += 1", "if key in seen:"],
)  # fmt: skip
def test_the_only_rank_that_lives_is_blamed_where_its_line_needs_no_gpu(source):
    assert alone(source).headline().startswith("hang: rank 3 on algo-2, exit 67")


LIBRARY = "/lib/python3.11/site-packages"
LAYER = (StackFrame(f"{LIBRARY}/torch/nn/modules/linear.py", 125, "forward"),)
TRAINER = (StackFrame(f"{LIBRARY}/transformers/trainer.py", 2532, "train"),)
LOADER = (
    StackFrame("/usr/lib/python3.11/selectors.py", 415, "select"),
    StackFrame(f"{LIBRARY}/torch/utils/data/dataloader.py", 1243, "_try_get_data"),
    *TRAINER,
)
STORE = (StackFrame("/usr/lib/python3.11/threading.py", 320, "wait"), WAITS)


@pytest.mark.parametrize(
    ("below", "blamed"),
    [
        ({1: (WAITS, *TRAINER), 2: (WAITS, *TRAINER), 3: LOADER}, 3),
        ({1: LAYER, 2: TRAINER, 3: LOADER}, 3),
        ({1: LAYER, 2: TRAINER, 3: (WAITS,)}, None),
        ({1: LAYER, 2: TRAINER, 3: STORE}, None),
    ],
)
def test_at_one_line_of_a_library_s_loop_only_the_one_that_needs_no_gpu_is_blamed(below, blamed):
    failure = verdict(at_one_line("trainer.train()", below))
    assert (failure.kind, failure.rank) == (("hang", blamed) if blamed else ("signal", 0))


@pytest.mark.parametrize("source", ["total += loss.item()", "x = x.to(device)", "total += float(loss)"])
def test_fewer_steps_of_a_rank_that_waits_for_its_gpu_say_nothing(source):
    """The host runs ahead of its GPU: rank 0 reads the loss in step 11 while the others have queued step 12."""
    ranks = job(sleeper=-1)
    mine = [Stack(0, "algo-1", 11, (SCRIPT,), source=source)]
    others = {"algo-1": [], "algo-2": [Stack(3, "algo-2", 12, (WAITS, STEP))]}
    ranks.stacks = lambda host: others[host] + mine * (host == "algo-1")
    for number in (1, 2):
        host = ranks.hosts[number // 2]
        ranks.send(ranks.hub.fail(ranks.now, Failure("signal", host, 134, "", number, WATCHDOG, step=12)))
    ranks.pass_time(VERDICT_S)
    assert (verdict(ranks).kind, verdict(ranks).rank) == ("signal", 1)


def test_a_rank_that_waits_but_is_behind_is_named():
    ranks = job(sleeper=-1)
    ranks.stacks = lambda host: [Stack(0, host, 40, (WAITS, STEP))] if host == "algo-1" else []
    for number in (1, 2, 3):
        host = ranks.hosts[number // 2]
        failure = Failure("signal", host, 134, "ended by the signal", number, WATCHDOG, step=41)
        ranks.send(ranks.hub.fail(ranks.now, failure))
    ranks.pass_time(VERDICT_S)
    assert verdict(ranks).headline().startswith("hang: rank 0 on algo-1, exit 67, attempt 1, step 40: ")


def test_nobody_is_asked_where_no_rank_lives_or_a_cause_is_known():
    dead = job(1)
    abort(dead, 0, 1)
    dead.pass_time(LIMITS.blame_s + 0.1)
    assert verdict(dead).code == 134
    caused = job()
    abort(caused, 0, 1)
    caused.act("algo-2", caused.members["algo-2"].rank_exited(caused.now, 0, 3))
    caused.settle()
    caused.pass_time(LIMITS.blame_s + 0.1)
    assert verdict(caused).code == 3


def test_a_rank_that_left_with_0_explains_the_time_out():
    ranks = job()
    ranks.act("algo-2", ranks.members["algo-2"].rank_exited(ranks.now, 1, 0, "", 41))
    abort(ranks, 0)
    ranks.pass_time(VERDICT_S)
    assert verdict(ranks).headline().startswith("left: rank 3 on algo-2 left with 0 after step 41 while 3 ranks")


def test_a_host_that_does_not_answer_is_not_waited_for():
    ranks = job()
    ranks.mute.update(ranks.hosts)
    abort(ranks, 0)
    ranks.pass_time(VERDICT_S)
    assert not ranks.verdicts
    ranks.pass_time(ANSWER_S)
    assert verdict(ranks).code == 134
    assert not verdict(ranks).hint


def test_a_failure_while_hosts_are_asked_is_the_cause():
    """It woke up, and then failed by itself."""
    ranks = job()
    ranks.mute.add("algo-2")
    abort(ranks, 0)
    ranks.pass_time(VERDICT_S)
    ranks.act("algo-2", ranks.members["algo-2"].rank_exited(ranks.now, 1, 3))
    ranks.settle()
    ranks.pass_time(ANSWER_S)
    assert (verdict(ranks).code, verdict(ranks).rank) == (3, 3)


def test_a_hang_found_this_way_is_followed_by_another_attempt():
    ranks = job(restarts=1)
    abort(ranks, 0, 1, 2)
    ranks.pass_time(VERDICT_S)
    assert ranks.begun == {"algo-1": [0, 1], "algo-2": [0, 1]}
    abort(ranks, 0, 1, 2)
    ranks.pass_time(VERDICT_S)
    assert verdict(ranks).kind == "budget"
    assert "the last failure: hang: rank 3 on algo-2" in verdict(ranks).message


@pytest.mark.parametrize("asked", [False, True])
def test_a_stop_ends_the_questions(asked):
    ranks = job()
    ranks.mute.update(ranks.hosts)
    abort(ranks, 0)
    ranks.pass_time(VERDICT_S if asked else 0.1)
    ranks.act("algo-2", ranks.members["algo-2"].stop_asked(ranks.now, "SIGTERM on algo-2"))
    ranks.settle()
    for host in ranks.hosts:
        finish(ranks, host)
    ranks.settle()
    ranks.pass_time(VERDICT_S + ANSWER_S)
    assert {each.code for each in ranks.verdicts.values()} == {134}


def test_an_error_that_says_what_to_do_is_the_verdict():
    ranks = running(2)
    words = "DistStoreError: wait timeout after 9ms"
    raised = Raised(
        0,
        1,
        ranks.now,
        "UserError",
        words,
        f"Traceback (most recent call last):\nUserError: {words}",
        explains_itself=True,
    )
    ranks.act("algo-1", ranks.members["algo-1"].rank_raised(ranks.now, 0, raised, is_rank=True))
    ranks.settle()
    ranks.pass_time(LIMITS.blame_s + 0.1)
    assert verdict(ranks).code == 1


def told(ranks: Living, steps: int = 0) -> None:
    """Half-way to the limit of their calls all ranks have told them: rank 1 called another one than the others.

    The failures of these tests have no steps.
    """
    for rank in range(4):
        call = CollectiveCall(
            "nccl:0", 9, "broadcast" if rank == 1 else "all_reduce", "0-3", "[[3]]", "Float", "/opt/ml/code/train.py", 7
        )
        host = ranks.hosts[rank // 2]
        ranks.send(ranks.hub.stack(Stack(rank, host, steps, calls=(call,))))


DIFFER = (
    "; rank 1 called broadcast [3] Float at train.py:7, 3 others called all_reduce [3] Float at train.py:7"
    " (call 9 of the default group)"
)


def test_calls_told_before_all_ranks_were_ended_at_once_name_the_odd_one():
    ranks = job(sleeper=-1)
    told(ranks)
    abort(ranks, 0, 1, 2, 3)
    ranks.pass_time(VERDICT_S)
    failure = verdict(ranks)
    assert (failure.kind, failure.rank) == ("signal", 1)
    assert failure.message.endswith(DIFFER)


def test_calls_told_before_a_rank_went_on_count_no_more():
    ranks = job(sleeper=-1)
    told(ranks, steps=7)
    abort(ranks, 0, 1, 2, 3)
    ranks.pass_time(VERDICT_S)
    assert "called" not in verdict(ranks).message


def test_calls_told_explain_no_failure_that_explains_itself():
    ranks = job(sleeper=-1)
    told(ranks)
    abort(ranks, 3, tail="Segmentation fault")
    abort(ranks, 0, 1, 2)
    ranks.pass_time(VERDICT_S)
    failure = verdict(ranks)
    assert failure.rank == 3
    assert "called" not in failure.message
