"""Warnings about hosts: in time, once, with the hosts' names, and never where nothing is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorun.common.fast_dataclasses import replace
from algorun.control.hub.host_loads import AGAIN_S, FULL_MEMORY, IN_A_ROW, HostLoads
from algorun.timing.host_figures import FolderFigures
from algorun.timing.host_load import HostLoad
from tests.conftest import examples

EVERY_S = 10.0
FINE = HostLoad(True, 10.0, 4, 0.0, 0.5, 8, 1.0, 1.0, 0.5, 1 << 34, gpus=4)
IDLE = replace(FINE, idle=3)
HOT = replace(FINE, throttled=1, reasons=("thermal (hardware)",))
FULL = replace(FINE, memory=0.97, fullest=FolderFigures("/opt/ml/checkpoints", 10**9, 30 * 10**9))


class Job:
    def __init__(self):
        self.loads, self.now, self.lines = HostLoads(), 0.0, []

    def reports(self, rounds=1, attempt=0, **loads):
        """A report of each host, `rounds` times; returns the lines that came."""
        before = len(self.lines)
        for _ in range(rounds):
            self.now += EVERY_S
            for name, load in loads.items():
                self.lines += self.loads.heard(self.now, name.replace("_", "-"), attempt, load)
        return self.lines[before:]


def test_idle_gpus_are_one_line_that_names_their_hosts():
    job = Job()
    assert job.reports(IN_A_ROW, algo_1=FINE, algo_2=IDLE, algo_3=replace(IDLE, idle=1)) == []
    assert job.reports(algo_1=FINE, algo_2=IDLE, algo_3=replace(IDLE, idle=1)) == [
        "gpus: 4 of 12 GPUs idle: algo-2 (3 of 4), algo-3 (1 of 4); their ranks make steps on the CPU, or mostly wait"
    ]
    assert job.reports(200, algo_1=FINE, algo_2=IDLE, algo_3=IDLE) == []


def test_gpus_without_ranks_have_a_fix():
    line = Job().reports(IN_A_ROW + 1, algo_1=replace(IDLE, ranks=1))[0]
    assert (
        line == "gpus: 3 of 4 GPUs idle: algo-1 (3 of 4); a host with 4 GPUs runs 1 rank: --slots 4 starts one on each"
    )


def test_a_lower_clock_says_why():
    line = Job().reports(IN_A_ROW + 1, algo_1=HOT, algo_2=FINE)[0]
    assert "gpus: 1 of 8 GPUs run at a lower clock (thermal (hardware)): algo-1 (1 of 4)" in line


def test_memory_and_disk_are_said_also_before_the_first_step():
    memory, disk = Job().reports(IN_A_ROW + 1, algo_1=replace(FULL, training=False))
    assert "memory: nearly full: algo-1 (97% of 17.2 GB)" in memory
    assert "disk: nearly full: algo-1 (/opt/ml/checkpoints has 1.0 GB free of 30.0 GB)" in disk


@pytest.mark.parametrize("load", [IDLE, HOT])
def test_outside_of_training_gpus_are_not_judged(load):
    job = Job()
    assert job.reports(20, algo_1=replace(load, training=False)) == []
    assert job.reports(IN_A_ROW, algo_1=load) == []
    assert job.reports(20, algo_1=replace(load, training=False)) == [], "the end of the job"


def test_other_hosts_are_named_later_and_not_too_often():
    job = Job()
    assert len(job.reports(IN_A_ROW + 1, algo_1=IDLE, algo_2=FINE)) == 1
    assert job.reports(30, algo_1=IDLE, algo_2=IDLE) == []
    later = job.reports(int(AGAIN_S / EVERY_S), algo_1=IDLE, algo_2=IDLE)
    assert len(later) == 1, "algo-2 had no line of its own yet"


def test_a_thousand_idle_hosts_are_one_bounded_line():
    job = Job()
    lines = job.reports(IN_A_ROW + 1, **{f"algo_{number}": IDLE for number in range(1000)})
    assert len(lines) == 1
    assert len(lines[0]) < 300
    assert "algo-0 (3 of 4)" in lines[0]


WAITS = replace(FINE, data=0.4, workers=2)


def test_ranks_that_wait_for_batches_are_one_line_while_the_job_runs_and_one_at_its_end():
    job = Job()
    lines = job.reports(30, algo_1=WAITS, algo_2=FINE)
    assert lines == [
        "data: ranks on algo-1 wait 40% of the time for batches; the CPUs are 50% busy: "
        "3 workers for each rank, not 2 (--workers; num_workers of a DataLoader)"
    ]
    assert job.loads.at_the_end(0).startswith("data: ranks wait 20% of the time for batches")
    assert len(Job().reports(IN_A_ROW + 1, algo_1=WAITS, algo_2=WAITS)) == 1


def test_the_line_at_the_end_is_about_the_last_attempt_and_long_enough():
    job = Job()
    job.reports(5, algo_1=WAITS)
    assert job.loads.at_the_end(1) == "", "an attempt that has reported nothing"
    job.reports(1, attempt=1, algo_1=FINE)
    assert job.loads.at_the_end(1) == ""
    short = Job()
    short.reports(1, algo_1=replace(WAITS, seconds=1.0))
    assert short.loads.at_the_end(0) == ""
    assert Job().loads.at_the_end(0) == ""


# a load by letters: what is wrong in it
LOADS = {"f": FINE, "i": IDLE, "h": HOT, "e": replace(IDLE, training=False), "m": replace(FINE, memory=FULL_MEMORY)}


@examples(400)
@given(st.lists(st.sampled_from("fihem"), max_size=40))
def test_no_line_without_a_row_of_reports(letters):
    job, rows = Job(), {"i": 0, "h": 0, "m": 0}
    for letter in letters:
        for kind in rows:
            holds = letter == kind
            unknown = kind in "ih" and letter == "e"
            rows[kind] = rows[kind] if unknown else rows[kind] + 1 if holds else 0
        for line in job.reports(algo_1=LOADS[letter]):
            kind = {"idle": "i", "lower": "h", "full": "m"}[next(w for w in ("idle", "lower", "full") if w in line)]
            assert rows[kind] > IN_A_ROW
    assert len(job.lines) <= 3 * (1 + len(letters) * EVERY_S // AGAIN_S)
