"""Whether a silent rank works or stands, from two looks at its processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common.fast_dataclasses import replace
from algorun.control.hang.hang import Stack, StackFrame, suspects_of_silence
from algorun.control.hang.host_look import HostLook
from algorun.control.hang.standstill import (
    PAUSE_S,
    ProcessLook,
    RankLook,
    Signs,
    all_stand,
    host_look,
    part_stands,
    silent_s,
    work,
    worker_that_stands,
)
from tests.conftest import examples

SITE = "/opt/venv/lib/python3.11/site-packages"
CODE = "/opt/ml/code/train.py"
OWN = StackFrame(CODE, 40, "main")
ALL_REDUCE = (StackFrame(f"{SITE}/torch/distributed/distributed_c10d.py", 3252, "all_reduce"), OWN)
BACKWARD = (
    StackFrame(f"{SITE}/torch/autograd/graph.py", 979, "_engine_run_backward"),
    StackFrame(f"{SITE}/torch/_tensor.py", 623, "backward"),
    OWN,
)
SAVES = (StackFrame(f"{SITE}/torch/distributed/checkpoint/filesystem.py", 300, "_write_item"), OWN)
JAX = (StackFrame(f"{SITE}/jax/_src/interpreters/pxla.py", 395, "__call__"), OWN)
COMPILES = (StackFrame(f"{SITE}/jax/_src/compiler.py", 300, "backend_compile"), OWN)
READS = (StackFrame("/usr/lib/python3.11/socket.py", 705, "readinto"), OWN)
LATER = StackFrame(CODE, 41, "main")
MIB = 1 << 20

# What a process was at, its line, whether it has a GPU; what the kernel has counted since; whether it is alone; the answer.
TABLE = {
    "sleeps": ((OWN,), "time.sleep(1000)", False, {}, False, ""),
    "computes": ((OWN,), "x = heavy(x)", False, {"main_s": 9.9}, False, "computes"),
    "a little of its CPU": ((OWN,), "time.sleep(1000)", False, {"main_s": 0.1, "others_s": 0.1}, False, ""),
    "compiles": (COMPILES, "f(x)", False, {"main_s": 10.0}, False, "computes"),
    "threads compile": (COMPILES, "f(x)", False, {"others_s": 20.0}, False, "computes"),
    "a spinning collective": (ALL_REDUCE, "dist.all_reduce(x)", False, {"main_s": 10.0}, False, ""),
    "a collective while a thread writes": (ALL_REDUCE, "dist.all_reduce(x)", False, {"moved": 90 * MIB}, False, "reads or writes"),
    "a collective while threads compute": (ALL_REDUCE, "dist.all_reduce(x)", False, {"others_s": 5.0}, False, "computes"),
    "a collective and signs of life": (ALL_REDUCE, "dist.all_reduce(x)", False, {"received": 500_000}, False, ""),
    "an MPI barrier that spins": ((OWN,), "comm.Barrier()", False, {"main_s": 10.0}, False, ""),
    "an MPI reduction of a length": ((OWN,), "total = comm.allreduce(len(rows))", False, {"main_s": 10.0}, False, ""),
    "an MPI reduction of a computation": ((OWN,), "total = comm.allreduce(heavy(rows))", False, {"main_s": 10.0}, False, "computes"),
    "an MPI barrier of a job of one rank": ((OWN,), "comm.Barrier()", False, {"main_s": 10.0}, True, "computes"),
    "a backward pass on a CPU": (BACKWARD, "loss.backward()", False, {"main_s": 10.0}, False, "computes"),
    "a backward pass that waits": (BACKWARD, "loss.backward()", False, {}, False, ""),
    "a backward pass on a GPU that spins": (BACKWARD, "loss.backward()", True, {"main_s": 10.0}, False, ""),
    "a value of a GPU": ((OWN,), "total += loss.item()", True, {"main_s": 10.0}, False, ""),
    "a value of a CPU": ((OWN,), "total += net(x).item()", False, {"main_s": 10.0}, False, "computes"),
    "a value of a GPU, alone": ((OWN,), "total += loss.item()", True, {}, True, "uses its GPU"),
    "a kernel of minutes": ((OWN,), "y = kernel(x)", True, {}, False, "uses its GPU"),
    "a distributed checkpoint that is written": (SAVES, "save(state)", False, {"main_s": 9.0}, False, "computes"),
    "JAX on a CPU waits": (JAX, "y = f(x)", False, {}, False, ""),
    "JAX on a CPU computes": (JAX, "y = f(x)", False, {"others_s": 9.0}, False, "computes"),
    "a download": (READS, "data = page.read()", False, {"received": 3 * MIB, "main_s": 0.1}, False, "receives data"),
    "a connection that brings nothing": (READS, "data = page.read()", False, {}, False, ""),
    "an index that is written": ((OWN,), "index.add(row)", False, {"moved": 1 * MIB, "main_s": 0.1}, False, "reads or writes"),
    "no Python, waits": ((), "", False, {}, False, ""),
    "no Python, spins": ((), "", False, {"main_s": 10.0}, False, "computes"),
}  # fmt: skip


@pytest.mark.parametrize(("frames", "source", "on_gpu", "since", "alone", "does"), TABLE.values(), ids=list(TABLE))
def test_what_a_process_does_between_two_looks(frames, source, on_gpu, since, alone, does):
    before = ProcessLook(7, 1, 3.0, 4.0, 5, 6, frames, source, on_gpu=on_gpu)
    after = replace(before, **{name: getattr(before, name) + more for name, more in since.items()})
    looks = RankLook(100.0, 0.0, (before,)), RankLook(100.0 + PAUSE_S, 0.0, (after,), gpu=1.0 if on_gpu else 0.0)
    assert work(*looks, alone=alone) == does


def looks(before=(), after=(), sign_at=0.0, by_rule=False):
    return RankLook(100.0, 0.0, tuple(before)), RankLook(110.0, sign_at, tuple(after), by_rule)


SLEEPS = ProcessLook(7, 1, frames=(OWN,), source="time.sleep(9)")


@pytest.mark.parametrize(
    ("since", "does"),
    [
        ({"main_s": 10.0}, ""),  # it may spin
        ({"others_s": 10.0}, "computes"),
        ({"moved": 90 * MIB}, "reads or writes"),
        ({"received": 500_000}, ""),  # they may be signs of life
        ({"received": 5 * MIB}, "receives data"),
    ],
)
def test_what_is_sure_without_a_stack(since, does):
    before = ProcessLook(7, 1)
    after = replace(before, **since)
    assert work(*looks([before], [after]), alone=False, counts_only=True) == does


def test_a_sign_of_progress_between_the_looks_decides():
    assert work(*looks([SLEEPS], [SLEEPS], sign_at=101.0), alone=False) == "has gone on"
    assert work(*looks([SLEEPS], [SLEEPS], sign_at=99.0), alone=False) == ""


def test_another_place_is_work():
    moved = replace(SLEEPS, frames=(LATER,))
    assert work(*looks([SLEEPS], [moved]), alone=False) == "was at train.py:40, then at train.py:41"
    assert work(*looks([SLEEPS], [replace(SLEEPS, frames=())]), alone=False).startswith("was at train.py:40")


@pytest.mark.parametrize("after", [[], [replace(SLEEPS, born=2)], [SLEEPS, ProcessLook(8, 1)]])
def test_processes_that_begin_or_end_are_work(after):
    assert work(*looks([SLEEPS], after), alone=False) == "starts or ends processes"


def test_one_child_that_works_is_enough():
    child = ProcessLook(8, 1)
    assert work(*looks([SLEEPS, child], [SLEEPS, replace(child, main_s=2.0)]), alone=False) == "computes"


def test_a_stopped_process_stands():
    assert work(*looks([SLEEPS], [replace(SLEEPS, stopped=True, frames=())]), alone=False) == ""


def test_a_rank_that_breaks_the_user_s_rule_stands_whatever_it_does():
    busy = replace(SLEEPS, main_s=9.0, moved=MIB)
    assert work(*looks([SLEEPS], [busy], by_rule=True), alone=False) == ""
    assert work(*looks([SLEEPS], [busy], sign_at=105.0, by_rule=True), alone=False) == "has gone on"


@examples(200)
@given(
    main=st.floats(0, 20), others=st.floats(0, 20), moved=st.integers(0, MIB), received=st.integers(0, MIB),
    frames=st.sampled_from([(), (OWN,), ALL_REDUCE, BACKWARD, JAX]), on_gpu=st.booleans(), alone=st.booleans(),
)  # fmt: skip
def test_more_work_never_makes_a_rank_stand(main, others, moved, received, frames, on_gpu, alone):
    before = ProcessLook(7, 1, frames=frames, on_gpu=on_gpu)
    after = replace(before, main_s=main, others_s=others, moved=moved, received=received)
    if work(*looks([before], [after]), alone=alone):
        more = replace(after, main_s=2 * main, others_s=2 * others, moved=2 * moved, received=2 * received)
        assert work(*looks([before], [more]), alone=alone)
    assert work(*looks([before], [before]), alone=alone) == ""


LIMIT_S = 600.0


@pytest.mark.parametrize(
    ("ranks", "seconds"),
    [
        ([Signs(100.0)], 700.0),
        ([Signs(100.0), Signs(50.0)], 700.0),
        ([Signs(100.0), Signs(300.0)], 0.0),
        ([Signs(100.0, reported_at=250.0)], 0.0),
        ([Signs(799.0, matched_at=120.0)], 680.0),  # other lines say nothing any more
        ([Signs(799.0, matched_at=120.0, reported_at=500.0)], 0.0),
        ([Signs(799.0)], 0.0),
        ([Signs(100.0), Signs(100.0, steps=True)], 0.0),  # steps are judged by their own rule
        ([], 0.0),
    ],
)
def test_how_long_a_host_is_silent(ranks, seconds):
    assert silent_s(ranks, 800.0, LIMIT_S) == seconds


def test_the_whole_job_stands_only_if_nothing_works():
    assert all_stand([HostLook((0, 1)), HostLook((2,)), HostLook()])
    assert not all_stand([HostLook((0, 1)), HostLook((2,), (3,), "computes")])
    assert not all_stand([HostLook((0,)), HostLook(node="computes")])
    assert not all_stand([HostLook(), HostLook()]), "nothing is known of any rank"


@examples(200)
@given(st.lists(st.dictionaries(st.integers(0, 99), st.sampled_from(["", "computes"]), max_size=5), max_size=4))
def test_a_job_stands_a_part_stands_or_nothing_is_said(hosts):
    found = {f"algo-{number + 1}": host_look(works) for number, works in enumerate(hosts)}
    texts = [text for works in hosts for text in works.values()]
    assert all_stand(found.values()) == (bool(texts) and not any(texts))
    assert bool(part_stands(found, 600.0)) == (any(texts) and not all(texts))


def test_the_warning_names_ranks_of_both_kinds():
    hosts = {"algo-1": HostLook(tuple(range(12))), "algo-2": HostLook((), (12, 13), "reads or writes")}
    assert part_stands(hosts, 600.0) == (
        "no sign of progress for 600 s: ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more stand still, but rank 12 reads or writes; "
        "the job goes on"
    )
    ray = {"algo-1": HostLook((0,)), "algo-2": HostLook(node="computes")}
    assert part_stands(ray, 60.0) == (
        "no sign of progress for 60 s: rank 0 stands still, but a worker on algo-2 computes; the job goes on"
    )


IDLE = (
    StackFrame("/site-packages/ray/_private/worker.py", 1069, "main_loop"),
    StackFrame("default_worker.py", 322, "<module>"),
)
IN_SLEEP = (StackFrame("/job/train.py", 5, "stuck"), StackFrame("/job/train.py", 9, "step"))


def workers(*frames):
    return {f"ray::Trainer{number}.step": [Stack(number, "", 0, each)] for number, each in enumerate(frames)}


def test_the_worker_that_holds_the_driver_up_is_named_whichever_host_has_it():
    found = {
        "algo-1": host_look({0: ""}, "", workers(IDLE)),
        "algo-2": host_look({}, "", workers(IDLE, IN_SLEEP)),
        "algo-3": host_look({}),
    }
    assert worker_that_stands(found) == "ray::Trainer1.step on algo-2: stuck at train.py:5"
    assert worker_that_stands({"algo-1": found["algo-1"]}).startswith(
        "ray::Trainer0.step on algo-1: main_loop (worker.py:1069)"
    )
    assert worker_that_stands({"algo-3": found["algo-3"]}) == ""
    assert host_look({}, "computes", workers(IN_SLEEP)).worker == "", "it works"
    assert host_look({}, "", {"ray::Trainer.step": [Stack(7, "", 0)]}).worker == "", "its stack is not known"


def test_a_rank_that_waits_for_what_another_one_sends_holds_nobody_up():
    stacks = [
        Stack(0, "algo-1", 0, READS, source="data = peer.recv(9)"),
        Stack(1, "algo-1", 0, ALL_REDUCE),
        Stack(2, "algo-2", 0, (OWN,), source="peer, _ = server.accept()"),
        Stack(3, "algo-2", 0, (OWN,), source="time.sleep(1000)"),
    ]
    assert suspects_of_silence(stacks) == [stacks[3]]
    assert suspects_of_silence(stacks[:3]) == stacks[:3]
