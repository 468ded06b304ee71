"""When a host reports its load: a window begins and ends with a step of every rank."""

from __future__ import annotations

import math

from algorun.host.measuring.load_reports import LoadReports
from algorun.host.measuring.step_counter import Steps
from algorun.timing.host_figures import GpuFigures, HostFigures


class Board:
    """Stands for the records of two ranks."""

    def __init__(self):
        self.steps = [0, 0]

    def read(self, local_rank):
        return Steps(self.steps[local_rank], 1.0)


class Host:
    def __init__(self, every_s=10.0, ranks=2):
        self.board, self.told, self.now, self.every_s = Board(), [], 0.0, every_s
        self.reports = LoadReports(self.board, ranks, 0, lambda message: self.told.append(message.load))

    def seconds(self, count, steps=(1, 1), use=0.9):
        for second in range(count):
            self.now += 1.0
            self.board.steps = [mine + more for mine, more in zip(self.board.steps, steps, strict=True)]
            samples = [HostFigures(self.now, self.now, 2.0, "algo-1", gpus=(GpuFigures(use),))] if second % 2 else []
            self.reports.look(self.now, self.every_s, samples)


def test_steps_of_all_ranks_are_training():
    host = Host()
    host.seconds(25)
    assert [(each.training, each.seconds) for each in host.told] == [(True, 10.0), (True, 10.0)]


def test_what_follows_the_last_step_is_not_judged():
    host = Host()
    host.seconds(25)
    host.seconds(60, steps=(0, 0), use=0.0)
    host.reports.tell_last()
    assert all(each.idle == 0 for each in host.told if each.training)
    assert len([each for each in host.told if not each.training]) >= 5, "memory and disks are told all the time"


def test_a_rank_that_has_made_no_step_yet_is_waited_for():
    host = Host()
    host.seconds(40, steps=(1, 0), use=0.0)
    assert not any(each.training for each in host.told)


def test_steps_that_are_longer_than_a_report_are_judged_by_whole_steps():
    host = Host()
    for _ in range(4):
        host.seconds(29, steps=(0, 0), use=0.5)
        host.seconds(1, steps=(1, 1), use=0.5)
    found = [each for each in host.told if each.training]
    assert len(found) >= 2
    assert all(each.seconds == 30.0 for each in found)


def test_a_job_shorter_than_a_report_tells_its_window_at_the_end():
    host = Host()
    host.seconds(6)
    host.reports.tell_last()
    assert [each.training for each in host.told][-1] is True
    assert host.told[-1].seconds > 3


def test_reports_can_be_off():
    host = Host(math.inf)
    host.seconds(30)
    host.reports.tell_last()
    assert host.told == []


def test_a_host_without_ranks_tells_its_memory_and_disks():
    host = Host(ranks=0)
    host.seconds(25)
    assert len(host.told) >= 2
    assert not any(each.training for each in host.told)
