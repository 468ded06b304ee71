"""The same failure twice in a row is final; what moves on, or comes from a machine, is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common.fast_dataclasses import replace
from algorun.control.failures import same_failure
from algorun.control.failures.failure import Failure
from algorun.control.hub.restarts import MOST_BARREN, Restarts
from tests.conftest import examples
from tests.launcher.jobs import LIMITS, running

STACK = 'Stack (most recent call last):\n  File "/opt/ml/code/train.py", line 10, in <module>\n  File "/usr/lib/python3.11/socket.py", line 9, in recv'
VALUE = Failure("exception", "algo-2", 1, "ValueError: bad record 17", 3, step=120, place="train.py:6")
EARLY = Failure("exception", "algo-1", 1, "ModuleNotFoundError: No module named 'lxml'", 0, place="train.py:3")
EXIT = Failure("exit", "algo-1", 7, "no message on stderr", 0)
HANG = Failure("hang", "algo-2", 67, "no step for 600 s after step 9: f at train.py:10", 2, step=9, traceback=STACK)


def error(message: str, **fields: object) -> Failure:
    return replace(VALUE, message=message, traceback=f"Traceback (most recent call last):\n{message}", **fields)


# What has failed, what fails in the attempt after it, and whether the job ends then. The page has the same rows:
# docs/troubleshooting.md, "68".
SAME = [
    (VALUE, VALUE, True),
    (VALUE, replace(VALUE, message="ValueError: bad record 18"), True),
    (EARLY, EARLY, True),
    (EXIT, EXIT, True),
    (replace(EXIT, step=4), replace(EXIT, step=4, message="another last line"), True),
    (Failure("signal", "algo-1", 139, "ended by the signal", 0, step=5),) * 2 + (True,),
    (HANG, replace(HANG, message="no step for 601 s after step 9: f at train.py:10"), True),
    (Failure("left", "algo-1", 1, "rank 1 on algo-2: connection closed", 0, step=8),) * 2 + (True,),
    (error("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"),) * 2 + (True,),
    (error("RuntimeError: CUDA error: device-side assert triggered"),) * 2 + (True,),
    (error("torch.distributed.DistBackendError: NCCL error: invalid usage, ncclInvalidUsage: ..."),) * 2 + (True,),
]  # fmt: skip
MOVED = [
    (VALUE, replace(VALUE, step=121)),
    (VALUE, replace(VALUE, place="train.py:7")),
    (VALUE, replace(VALUE, message="KeyError: 'label'")),
    (VALUE, replace(VALUE, host="algo-1")),
    (EARLY, replace(EARLY, message="ModuleNotFoundError: No module named 'yaml'")),
    (EXIT, replace(EXIT, code=8)),
    (EXIT, replace(EXIT, message="out of credits at 12:01")),
    (HANG, replace(HANG, step=10)),
]
MACHINE = [
    Failure("signal", "algo-1", 137, "not sent by the launcher: the kernel's out-of-memory killer, or somebody", 0, step=5),
    Failure("exit", "algo-1", 137, "Killed", 0),
    Failure("exit", "algo-1", 143, "Terminated", 0),
    Failure("engine", "algo-1", 1, "mpirun ended with 1"),
    Failure("node", "algo-2", 66, "Ray's process raylet ended by signal 9"),
    Failure("hang", "algo-1", 67, "no step for 600 s: all 4 ranks wait for their GPUs or for each other"),
    Failure("hang", "algo-1", 67, "the process does not answer (stopped, or held in the kernel)", 1, step=9),
    *map(error, (
        "torch.AcceleratorError: CUDA error: unspecified launch failure",
        "torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution",
        "RuntimeError: CUDA error: unknown error",
        "RuntimeError: GPU 3 has fallen off the bus (Xid 79)",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error",
        "RuntimeError: NCCL WARN NET/OFI Request completed with error",
        "RuntimeError: libfabric: fi_cq_readerr: Unresponsive receiver",
        "RuntimeError: [/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:1",
        "RuntimeError: DataLoader worker (pid 17) is killed by signal: Killed. ",
        "urllib.error.URLError: <urlopen error [Errno 110] Connection timed out>",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443)",
        "OSError: [Errno 5] Input/output error: '/opt/ml/input/data/train/a.tar'",
    )),
]  # fmt: skip


def ends(first: Failure, second: Failure, newer: bool = False) -> bool:
    restarts = Restarts(budget=9)
    restarts.begins({"algo-1": 1.0, "algo-2": 1.0})
    assert restarts.final(first, frozenset([first.host])) is None
    restarts.restart(first)
    restarts.begins({"algo-1": 1.0, "algo-2": 2.0 if newer else 1.0})
    last = restarts.final(replace(second, attempt=1), frozenset([second.host]))
    assert last is None or (last.kind, last.code) == ("budget", 68)
    return last is not None


@pytest.mark.parametrize(("first", "second", "final"), SAME)
def test_the_same_failure_twice_is_final(first, second, final):
    assert ends(first, second) is final
    assert not ends(first, second, newer=True), "the second attempt has begun somewhere else"


@pytest.mark.parametrize(("first", "second"), MOVED)
def test_a_failure_that_moves_on_is_tried_again(first, second):
    assert not ends(first, second)
    assert not ends(second, first)


@pytest.mark.parametrize("failure", MACHINE, ids=lambda each: each.message[:40])
def test_a_failure_of_a_machine_is_tried_again(failure):
    assert same_failure.of_machine(failure)
    assert not ends(failure, failure)


def test_another_failure_between_two_equal_ones_makes_them_two():
    restarts = Restarts(budget=9)
    for number, failure in enumerate((VALUE, EARLY, VALUE)):
        assert restarts.begins({"algo-1": 1.0}) is None
        assert restarts.final(replace(failure, attempt=number), frozenset([failure.host])) is None
        restarts.restart(failure)


def test_a_failure_of_several_hosts_is_the_same_where_one_of_them_has_it_again():
    restarts = Restarts(budget=9)
    restarts.begins({})
    assert restarts.final(VALUE, frozenset(["algo-1", "algo-2"])) is None
    restarts.restart(VALUE)
    restarts.begins({})
    last = restarts.final(replace(VALUE, host="algo-1", attempt=1), frozenset(["algo-1"]))
    assert last is not None
    assert last.message.startswith(
        "ValueError at train.py:6 on algo-1 after step 120 has ended attempts 1 and 2 in the same way, so another one would"
        " fail too; the last failure: exception: rank 3 on algo-1, exit 1, attempt 2"
    )


POOL = [VALUE, replace(VALUE, step=121), EARLY, EXIT, HANG, *MACHINE[:4]]


@examples(300)
@given(st.lists(st.tuples(st.sampled_from(POOL), st.booleans()), min_size=1, max_size=12), st.integers(1, 12))
def test_any_sequence_ends_as_its_definition_says(course, budget):
    """Each attempt fails with one of the pool; True: it has saved a newer checkpoint before."""
    restarts, stamp, barren, begun_at, failed = Restarts(budget), 1.0, 0, [], []
    for number, (failure, saves) in enumerate(course):
        begun_at.append(stamp)
        barren = 0 if number == 0 or begun_at[-1] != begun_at[-2] else barren + 1
        futile = restarts.begins({"algo-1": stamp})
        assert (futile is not None) is (barren >= MOST_BARREN)
        if futile is not None:
            return
        failed.append(failure)
        stamp += saves
        last = restarts.final(replace(failure, attempt=number), frozenset([failure.host]))
        twice = number > 0 and failed[-2] == failure and failure not in MACHINE and begun_at[-1] == begun_at[-2]
        if last is not None:
            assert twice or number >= budget
            assert ("in the same way" in last.message) is twice
            return
        assert not twice
        assert number < budget
        restarts.restart(failure)


def test_the_hub_ends_the_job_on_all_hosts_with_one_sentence():
    job = running(2, restarts=9)
    tail = 'Traceback (most recent call last):\n  File "/code/train.py", line 4, in <module>\nValueError: bad record'
    for _ in range(2):
        job.act("algo-2", job.members["algo-2"].rank_exited(job.now, 0, 1, tail))
        job.settle()
        job.pass_time(LIMITS.blame_s + 0.1)
    (failure,) = {verdict.failure for verdict in job.verdicts.values()}
    assert failure.code == 68
    assert job.begun["algo-1"] == [0, 1]
    assert failure.headline().startswith(
        "budget: algo-2, exit 68: ValueError at /code/train.py:4 on algo-2 has ended attempts 1 and 2 in the same way"
    )


def test_a_stop_or_a_lost_host_is_named_before_it():
    restarts = Restarts(budget=9)
    for number in range(2):
        restarts.begins({})
        last = restarts.final(
            replace(VALUE, attempt=number), frozenset(["algo-2"]), "algo-1 was lost" if number else ""
        )
        if not number:
            restarts.restart(VALUE)
    assert last is not None
    assert last.note == "no restart: algo-1 was lost"
